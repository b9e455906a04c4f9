"""The admission of the published VTC engine (S-LoRA on LightLLM), to see how much of a difference it explains.

Knows how many tokens each running request holds and how many it will still get. Does not know anything else of that
engine.

A newcomer is admitted if the pool holds everybody at the worst moment to come, as in `kvcache.growth`, but reckoned in
tokens, and each tenant with a running request takes `_ADAPTER_TOKENS` for its LoRA adapter (rank 8 × 4 matrices). Ours
knows no adapters and holds back a watermark.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from kvcache.growth import Growing, worst_need
from kvcache.manager import Allocation, KVCacheManager
from scheduling.index import Index

__all__ = ["StaggeredKV"]

_ADAPTER_TOKENS = 32


class StaggeredKV(KVCacheManager):
    """Blocks of one token, so that nothing is lost to rounding."""

    def __init__(self, index: Index, pool_tokens: int) -> None:
        super().__init__(pool_tokens, block_size=1)
        self._index = index
        self._expected: dict[int, int] = {}
        self._running_of: Counter[int] = Counter()

    def fits(
        self,
        row: int,
        tokens: int,
        *,
        owner_class: int,
        predicted_tokens: int | None = None,
        names: Sequence[int] = (),
        without: Collection[int] = (),
        spare: int = 0,
    ) -> bool:
        assert not without, "nobody is evicted in that engine"
        expected = max(tokens + 1, predicted_tokens or 0)
        tenant = self._index.tenant[row]
        tenants = len(self._running_of) + (tenant not in self._running_of)
        return self._worst_need(tokens, expected) < self.capacity_tokens - _ADAPTER_TOKENS * tenants

    def allocate(
        self,
        row: int,
        tokens: int,
        *,
        owner_class: int,
        predicted_tokens: int | None = None,
        names: Sequence[int] = (),
        spare: int = 0,
    ) -> Allocation | None:
        allocation = super().allocate(row, tokens, owner_class=owner_class, predicted_tokens=predicted_tokens)
        if allocation is not None:
            self._expected[row] = max(tokens + 1, predicted_tokens or 0)
            self._running_of[self._index.tenant[row]] += 1
        return allocation

    def release(self, row: int) -> int:
        tenant = self._index.tenant[row]
        self._running_of[tenant] -= 1
        if not self._running_of[tenant]:
            del self._running_of[tenant]
        del self._expected[row]
        return super().release(row)

    def _worst_need(self, tokens: int, expected: int) -> int:
        newcomer = Growing(expected - tokens - 1, tokens + 1, tokens + 1, tokens + 1)
        lengths = [(len(self.table(row)), end) for row, end in self._expected.items()]
        running = [Growing(max(0, end - length - 1), length, length, length) for length, end in lengths]
        held = tokens + 1 + sum(length for length, _ in lengths)
        return held + worst_need([newcomer, *running], block_size=1)
