"""A kernel in plain torch that reads flash-attention's tables as those libraries do: the oracle of the tables."""

import torch

from workers.runners.attention.flash_libraries import FlashCall, FlashLibrary

__all__ = ["PLAIN", "plain_kernel"]

PLAIN = FlashLibrary("plain torch", "torch", 32, frozenset())


def plain_kernel(call: FlashCall) -> torch.Tensor:
    """Sequence by sequence, from the block table and the lengths alone."""
    out = torch.empty_like(call.query)
    assert torch.equal(call.key_ends[1:], call.key_lengths.cumsum(0))
    assert call.longest_key >= int(call.key_lengths.max())
    assert call.longest_query >= int(call.query_ends.diff().max())
    for sequence in range(len(call.key_lengths)):
        first, last = call.query_ends[sequence : sequence + 2].tolist()
        length = int(call.key_lengths[sequence])
        own = call.block_table[sequence].long()
        keys, values = (pool[own].flatten(0, 1)[:length] for pool in (call.keys, call.values))
        query = call.query[first:last]
        group = query.shape[1] // keys.shape[1]
        scores = torch.einsum("qhd,khd->hqk", query, keys.repeat_interleave(group, 1)) * call.scaling
        positions = torch.arange(length - (last - first), length)[:, None]
        behind = positions - torch.arange(length)
        hidden = behind < 0
        if call.window is not None:
            hidden |= behind > call.left
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        out[first:last] = torch.einsum("hqk,khd->qhd", weights, values.repeat_interleave(group, 1))
    return out
