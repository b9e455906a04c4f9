"""Which block holds the KV of which tokens: found by name, kept until the block is taken for something else.

Knows names (`kvcache.block_hash`) and block numbers. Does not know tokens, requests, or which blocks are free: the
manager tells when a block is filled and when it is taken anew.

One cache for all classes and tenants: a block that a batch job computed serves an urgent request just as well, and a
part for each would only be smaller. Nothing is held for the cache: a block that nobody holds is free, and its content
stays findable until the pool hands the block out. The pool's free list is in order of last use, so what is lost first
is what was used longest ago (LRU), and of one request its end before its start, which others are likelier to share.

A trie (SGLang's radix tree) finds the same hits; with chained names a dictionary does, and eviction needs no walk.

Limits: whole blocks only; equal content computed twice at the same time keeps the first block's name.
"""

from collections.abc import Iterable, Sequence

__all__ = ["PrefixCache"]


class PrefixCache:
    """Names ↔ blocks, one to one."""

    def __init__(self) -> None:
        self._block_of: dict[int, int] = {}
        self._name_of: dict[int, int] = {}

    def __len__(self) -> int:
        """Blocks with a name."""
        return len(self._name_of)

    def __contains__(self, block: object) -> bool:
        return block in self._name_of

    def longest(self, names: Sequence[int], limit: int) -> list[int]:
        """The blocks of the longest run of `names` from the first on that is here; at most `limit` of them."""
        found: list[int] = []
        block_of = self._block_of
        for place in range(min(limit, len(names))):
            block = block_of.get(names[place])
            if block is None:
                break
            found.append(block)
        return found

    def add(self, name: int, block: int) -> None:
        """The block holds what is named so. Where another block is known to hold it, that one stays known."""
        if name not in self._block_of:
            assert block not in self._name_of, f"block {block} has a name already"
            self._block_of[name] = block
            self._name_of[block] = name

    def forget(self, blocks: Iterable[int]) -> int:
        """These blocks are about to hold something else; how many of them had a name."""
        forgotten = 0
        for block in blocks:
            name = self._name_of.pop(block, None)
            if name is not None:
                del self._block_of[name]
                forgotten += 1
        return forgotten

    def check_integrity(self) -> None:
        assert len(self._block_of) == len(self._name_of), "a name or a block is known twice"
        for name, block in self._block_of.items():
            assert self._name_of.get(block) == name, f"block {block} goes by two names"
