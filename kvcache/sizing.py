"""How many blocks a memory budget buys, and whether that is enough to serve anything.

Knows sizes in bytes and tokens. Does not know devices or tensors: what is free is told to it.

`auto` takes a share of what is free. On a CPU the share is small and has a ceiling: the memory is other programs' and
the page cache's too. On an accelerator that holds nothing but this model it is nearly all of it, less what steps take,
which is measured. Either way the pool holds at least one longest request, if that fits at all, because a request
that is longer than the pool could never run.
"""

from dataclasses import dataclass

__all__ = ["ACCELERATOR_SHARE", "CPU_SHARE", "KVGeometry", "MemoryShare", "PoolSizeError", "size_pool"]

_MIB = 2**20
_NEVER_MORE_THAN = 0.95
"""Of the free memory, whoever asks."""


class PoolSizeError(ValueError):
    """The pool that was asked for doesn't fit into memory, or can't hold one longest request. Says the sums."""


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """What one token's KV takes, by the model and the attention backend."""

    layers: int
    kv_heads: int
    head_dim: int
    element_bytes: int
    block_size: int
    """Tokens a block."""

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token, all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.element_bytes

    @property
    def block_bytes(self) -> int:
        return self.token_bytes * self.block_size

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """What `auto` takes of free memory."""

    fraction: float
    ceiling_bytes: int | None
    set_aside_bytes: int = 0
    """Of the free memory, for the activations of steps."""


CPU_SHARE = MemoryShare(fraction=0.25, ceiling_bytes=2048 * _MIB)
ACCELERATOR_SHARE = MemoryShare(fraction=0.95, ceiling_bytes=None)
"""Besides what is set aside."""


def size_pool(
    geometry: KVGeometry,
    *,
    budget_bytes: int | None,
    free_bytes: int,
    share: MemoryShare,
    longest_request_tokens: int,
) -> int:
    """The pool's blocks, out of `budget_bytes`, or of `share` of `free_bytes` where that is None.

    Raises `PoolSizeError`.
    """
    longest_bytes = geometry.blocks_for(longest_request_tokens) * geometry.block_bytes
    limit_bytes = int(free_bytes * _NEVER_MORE_THAN)
    if budget_bytes is None:
        budget_bytes = int((free_bytes - share.set_aside_bytes) * share.fraction)
        if share.ceiling_bytes is not None:
            budget_bytes = min(budget_bytes, share.ceiling_bytes)
        budget_bytes = min(max(budget_bytes, longest_bytes), limit_bytes)
        asked = f"{_mib(budget_bytes)}, {_mib(free_bytes)} being free,"
    else:
        if budget_bytes > limit_bytes:
            raise PoolSizeError(
                f"engine.kv_bytes = {budget_bytes} ({_mib(budget_bytes)}) is more than there is: {_mib(free_bytes)} "
                f"are free now; lower it to {limit_bytes} or less, or leave it out"
            )
        asked = f"engine.kv_bytes = {budget_bytes} ({_mib(budget_bytes)})"
    blocks = budget_bytes // geometry.block_bytes
    if blocks < geometry.blocks_for(longest_request_tokens):
        raise PoolSizeError(
            f"{asked} makes {blocks} blocks of {geometry.block_size} tokens ({geometry.token_bytes} bytes a token), "
            f"together {blocks * geometry.block_size} tokens, but one request may have {longest_request_tokens} "
            f"tokens, which take {_mib(longest_bytes)}: give engine.kv_bytes at least {longest_bytes}, or lower "
            f"model.max_context_tokens to {blocks * geometry.block_size} or less"
        )
    return blocks


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:,.1f} MiB"
