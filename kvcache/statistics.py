"""The figures of `kvcache.manager` at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvcache.block_pool import BlockPoolStatistics

__all__ = ["KVCacheStatistics"]


@dataclass(frozen=True, slots=True)
class KVCacheStatistics:
    pool: BlockPoolStatistics
    block_size: int
    tables: int
    reserved: int
    """Blocks promised for predicted growth and not taken yet."""
    used_by_class: Mapping[int, int]
    """Blocks charged to each class; one that several hold, to the most urgent of them."""
    allocations: int
    refused_allocations: int
    growths: int
    """Blocks taken by `grow`."""
    refused_growths: int
    grown_past_prediction: int
    """Blocks taken by `grow` beyond what was promised to their table."""
    cached: int
    """Blocks whose content can be found by name."""
    asked_tokens_by_class: Mapping[int, int]
    """Tokens for which blocks were allocated, prompts and what comes back."""
    hit_tokens_by_class: Mapping[int, int]
    """Those of them whose KV was found in the prefix cache."""
    swap_places: int
    swapped: int
    """Places in use."""
    swapped_out: int
    """Blocks copied out since the start."""
    swapped_in: int
    """Blocks copied back since the start: the others were found in the cache, or their request ended."""
    swaps_lost: int
    """Requests whose copies were of no use, for the shared blocks before them were gone."""
