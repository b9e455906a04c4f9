"""The block table of one request: where the KV of its tokens lies.

Knows block numbers and how many tokens they hold. Does not know the pool: `kvcache.manager` takes and gives back.
"""

from dataclasses import dataclass, field

__all__ = ["BlockTable"]


@dataclass(slots=True)
class BlockTable:
    """Token `i` lies in place `i % block_size` of block `blocks[i // block_size]`. Owned by the manager."""

    owner_class: int
    """The service class the blocks are accounted to, as it was at allocation."""
    blocks: list[int] = field(default_factory=list)
    reserved: int = 0
    """Blocks promised for predicted growth and not taken yet; counted against admissions only."""

    def missing(self, tokens: int, block_size: int) -> int:
        """Blocks the table lacks to hold `tokens` tokens."""
        return max(0, -(-tokens // block_size) - len(self.blocks))

    def runs(self) -> int:
        """Pieces of consecutive blocks the table consists of: what a copy of it would take."""
        pairs = zip(self.blocks, self.blocks[1:], strict=False)
        return len(self.blocks) and 1 + sum(after != before + 1 for before, after in pairs)
