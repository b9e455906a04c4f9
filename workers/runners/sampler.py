"""Draw the next tokens of a whole batch.

Knows logits, sampling parameters and output positions. Does not know models, sequences or requests; penalties and
biases are `workers.runners.logit_edits`, grammars `workers.runners.grammar_masks`.

**Randomness is counter-based**: the number behind a draw is a hash of (seed, output position) and nothing else, so a
request gets the same text whatever shares its batch, after a preemption, and in its next attempt on another worker.
The hash is SplitMix64 (Steele, Lea and Flood 2014) on integers, so it is the same on every device; the seed is mixed
once before it is used, for the streams of neighbouring seeds would otherwise be one stream, shifted.

**A draw is the inverse of the cumulative distribution**, summed in float64: u in [0, 1) picks the first token whose
cumulated probability exceeds u. Which tokens there are to pick from, and in which order, depends on the request's own
parameters alone:

- min_p first drops the tokens that are less probable than this part of the most probable one;
- neither top_k nor top_p: all tokens left, in order of their ids. Nothing is sorted;
- otherwise: the most probable tokens in order of probability, equal ones by id. First top_k cuts (exactly k), then
  top_p cuts what is left after its probabilities were scaled to 1: the fewest tokens whose sum reaches top_p. This is
  the order of vLLM and transformers.

Sorting a vocabulary takes milliseconds a row, so the most probable 512 are taken out first and sorted alone; rows that
need more (a flat distribution with a large top_p) go on with 8,192, then with all. The result is the same either way.

Greedy rows cost one argmax, which also finds logits that are not numbers.

Limit: logits themselves differ in their last bits with the batch's shape, for matrix products are summed in another
order. A draw within about 1e-7 of the border between two tokens can fall to the other side.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from workers.intake.sampling import SamplingParams, TokenLogprobs
from workers.runners.grammar_masks import GrammarMasks
from workers.runners.logit_edits import edit_logits
from workers.runners.logprobs import ModelLogprobs

__all__ = ["SampledTokens", "Sampler", "uniforms"]

_CANDIDATES = (512, 8192)
_BLOCK = 256
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

_Bits = np.ndarray[tuple[int, ...], np.dtype[np.uint64]]
_Doubles = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class SampledTokens:
    token_ids: tuple[int, ...]
    """One a row; none at all if some row is not finite."""
    not_finite: tuple[int, ...]
    """Rows whose logits hold a NaN, or no finite largest value. Single −inf are fine: tokens that can't be."""
    grammar_broken: tuple[int, ...] = ()
    """Rows whose grammar can't be followed; then no row has a token."""
    logprobs: Mapping[int, TokenLogprobs] = field(default_factory=dict)
    """Of the rows that ask for them."""


class Sampler:
    """Owned by the engine thread. Keeps one buffer of weights, for fresh memory of this size costs page faults."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0)
        self._masks = GrammarMasks()

    def sample(
        self,
        logits: torch.Tensor,
        params: Sequence[SamplingParams],
        positions: Sequence[int],
        histories: Sequence[Sequence[int]] | None = None,
    ) -> SampledTokens:
        """`logits` [rows, vocabulary] of any float format; `positions`: each row's output position.

        `histories`: each row's tokens so far, prompt and output; only rows with penalties or a grammar need theirs.
        Rows whose parameters edit logits have them changed in place.
        """
        histories = histories or [()] * len(params)
        distributions = ModelLogprobs(logits, params)
        if broken := self._masks.apply(logits, params, positions, histories):
            return SampledTokens((), (), grammar_broken=broken)
        largest, tokens = logits.max(dim=-1)
        not_finite = (~largest.isfinite()).nonzero().flatten().tolist()
        if not_finite:
            return SampledTokens((), tuple(not_finite))
        if edited := edit_logits(logits, params, positions, histories):
            rows = torch.tensor(edited, device=logits.device)
            largest[rows], tokens[rows] = logits[rows].max(dim=-1)
        drawing = [row for row, wish in enumerate(params) if not wish.greedy]
        if drawing:
            rows = torch.tensor(drawing, device=logits.device)
            if len(drawing) < len(params):
                logits, largest = logits[rows], largest[rows]
            wishes = [params[row] for row in drawing]
            u = torch.from_numpy(uniforms([wish.seed for wish in wishes], [positions[row] for row in drawing]))
            tokens[rows] = _draw(self._weights(logits, largest, wishes), u.to(logits.device), wishes)
        return SampledTokens(tuple(tokens.tolist()), (), logprobs=distributions.of(tokens))

    def _weights(self, logits: torch.Tensor, largest: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
        """[rows, vocabulary] in the buffer: probabilities but for a factor, the largest being 1."""
        if self._buffer.numel() < logits.numel() or self._buffer.device != logits.device:
            self._buffer = torch.empty(logits.numel(), dtype=torch.float32, device=logits.device)
        weights = self._buffer[: logits.numel()].view(logits.shape)
        temperature = torch.tensor([[wish.temperature] for wish in params], dtype=torch.float32, device=logits.device)
        # The largest becomes 0 first, so that no temperature, however small, makes an infinity of it.
        weights.copy_(logits).sub_(largest[:, None].float()).div_(temperature).exp_()
        if any(wish.min_p for wish in params):
            least = torch.tensor([[wish.min_p] for wish in params], dtype=torch.float32, device=logits.device)
            weights.masked_fill_(weights < least, 0.0)
        return weights


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> _Doubles:
    """A number in [0, 1) with 53 random bits for each (seed, position). Seeds count modulo 2⁶⁴."""
    seed = np.array([value & 0xFFFF_FFFF_FFFF_FFFF for value in seeds], dtype=np.uint64)
    counter = np.array(positions, dtype=np.uint64) + np.uint64(1)
    with np.errstate(over="ignore"):
        bits = _mix(_mix(seed + _GAMMA) + counter * _GAMMA)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(bits: _Bits) -> _Bits:
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
    return bits ^ (bits >> np.uint64(31))


def _draw(weights: torch.Tensor, u: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """[rows] token ids."""
    tokens = _invert_by_blocks(weights, u)
    filtered = [row for row, wish in enumerate(params) if wish.top_k is not None or wish.top_p < 1.0]
    if filtered:
        rows = torch.tensor(filtered, device=weights.device)
        wishes = [params[row] for row in filtered]
        tokens[rows] = _draw_filtered(weights if len(filtered) == len(params) else weights[rows], u[rows], wishes)
    return tokens


def _draw_filtered(weights: torch.Tensor, u: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """[rows] token ids, from fewer or more candidates, as many as the row needs."""
    vocabulary = weights.shape[1]
    top_k = torch.tensor([min(wish.top_k or vocabulary, vocabulary) for wish in params], device=weights.device)
    top_p = torch.tensor([wish.top_p for wish in params], dtype=torch.float64, device=weights.device)
    total = weights.sum(dim=-1, dtype=torch.float64)
    tokens = torch.empty(len(params), dtype=torch.long, device=weights.device)
    left = torch.arange(len(params), device=weights.device)
    for count in (*(count for count in _CANDIDATES if count < vocabulary), vocabulary):
        values, ids = _most_probable(weights if len(left) == len(params) else weights[left], count)
        kept = _keep(values, total[left], top_k[left], top_p[left])
        chosen = ids.gather(1, _invert(values * kept, u[left])[:, None])[:, 0]
        sure = torch.full_like(left, True, dtype=torch.bool)
        if count < vocabulary:
            # Only if every kept token is more probable than the least candidate: of the tokens as probable as that
            # one some may have been left out.
            sure = values.masked_fill(~kept, torch.inf).amin(dim=-1) > values[:, -1]
            sure &= (top_k[left] < count) | (top_k[left] == vocabulary)
        tokens[left[sure]] = chosen[sure]
        left = left[~sure]
        if not len(left):
            break
    return tokens


def _most_probable(weights: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest and their ids, largest first, equal ones by id (`topk` promises no order among those)."""
    if count == weights.shape[1]:
        values, order = weights.sort(dim=-1, descending=True, stable=True)
        return values, order
    ids = weights.topk(count, dim=-1, sorted=False).indices.sort(dim=-1).values
    values, order = weights.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def _keep(values: torch.Tensor, total: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Which of the values (largest first) top_k and then top_p leave; `total`: of all values, also those not here."""
    within_k = torch.arange(values.shape[1], device=values.device) < top_k[:, None]
    cumulated = (values * within_k).cumsum(dim=-1, dtype=torch.float64)
    # What top_k leaves counts as 1; where it cuts nothing, that is all there is, and not only these values.
    rest = torch.where(top_k < values.shape[1], cumulated[:, -1], total)
    before = cumulated - values
    return within_k & ((before < (top_p * rest)[:, None]) | (top_p >= 1.0)[:, None])


def _invert(weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """[rows] positions: the first whose cumulated weight exceeds u × the sum. Never one of weight 0."""
    cumulated = weights.cumsum(dim=-1, dtype=torch.float64)
    return _first_beyond(cumulated, u * cumulated[:, -1])


def _invert_by_blocks(weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """The same for a whole vocabulary: find the block of tokens first, then the token, and read each weight once."""
    rows, vocabulary = weights.shape
    whole = vocabulary // _BLOCK
    sums = torch.empty((rows, whole + 1), dtype=torch.float64, device=weights.device)
    sums[:, :whole] = weights[:, : whole * _BLOCK].view(rows, whole, _BLOCK).sum(dim=-1)
    sums[:, whole] = weights[:, whole * _BLOCK :].sum(dim=-1)
    cumulated = sums.cumsum(dim=-1)
    target = u * cumulated[:, -1]
    block = _first_beyond(cumulated, target)
    before = (cumulated - sums).gather(1, block[:, None])[:, 0]
    ids = block[:, None] * _BLOCK + torch.arange(_BLOCK, device=weights.device)
    inside = weights.gather(1, ids.clamp(max=vocabulary - 1)) * (ids < vocabulary)
    position = _first_beyond(inside.cumsum(dim=-1, dtype=torch.float64), target - before)
    return block * _BLOCK + position


def _first_beyond(cumulated: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """[rows] positions of the first value above the target, or else of the last one that was still a rise.

    The second case is rounding: the target was reckoned from a sum in another order.
    """
    beyond = torch.searchsorted(cumulated, target[:, None], right=True)
    last_rise = torch.searchsorted(cumulated, cumulated[:, -1:].contiguous())
    return torch.minimum(beyond, last_rise)[:, 0]
