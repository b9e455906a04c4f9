"""The block table of one request: where the KV of its tokens lies.

Knows block numbers, how many tokens they hold, and what their content is called. Does not know the pool:
`kvcache.manager` takes and gives back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["BlockTable"]


@dataclass(slots=True)
class BlockTable:
    """Token `i` lies in place `i % block_size` of block `blocks[i // block_size]`. Owned by the manager."""

    owner_class: int
    """The service class the blocks are accounted to, as it was at allocation."""
    tokens: int
    """Known tokens, for which it has blocks."""
    expected_tokens: int
    """What it is predicted to reach, and what blocks are promised for."""
    blocks: list[int] = field(default_factory=list)
    names: Sequence[int] = ()
    """Of the content of its blocks, from the first on (`kvcache.block_hash`): its owner's live list, which grows."""
    named: int = 0
    """Blocks from the first on that are computed and whose names the prefix cache was told."""

    def missing(self, tokens: int, block_size: int) -> int:
        """Blocks the table lacks to hold `tokens` tokens."""
        return max(0, -(-tokens // block_size) - len(self.blocks))

    def promised(self, block_size: int) -> int:
        """Blocks for predicted growth that it has not taken yet."""
        return self.missing(self.expected_tokens, block_size)

    def runs(self) -> int:
        """Pieces of consecutive blocks the table consists of: what a copy of it would take."""
        pairs = zip(self.blocks, self.blocks[1:], strict=False)
        return len(self.blocks) and 1 + sum(after != before + 1 for before, after in pairs)
