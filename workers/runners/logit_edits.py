"""Change logits as requests ask for it, before a token is chosen: penalties, biases, end tokens not yet allowed.

Knows logits, sampling parameters and the tokens so far. Does not choose.

In this order, each on what the one before left:

1. repetition penalty r: a token of prompt or output has its logit divided by r if positive, multiplied if negative
   (Keskar et al. 2019; as transformers and vLLM do it);
2. frequency and presence penalty: less f × (times in the output) and less p if it is in the output at all (OpenAI);
3. logit bias: added, so a bias of ±100 forces or forbids whatever the penalties say;
4. before `min_tokens` are out: end tokens can't be chosen.

All rows that ask for anything are changed together, and only at the tokens concerned; rows that ask for nothing cost
nothing. It is a function of the tokens alone, so it is the same after a preemption and in the next attempt.

Drawback: a row's tokens are counted anew at each step, some 0.1 ms for a thousand of them.
"""

from collections.abc import Sequence

import numpy as np
import torch

from workers.intake.sampling import SamplingParams

__all__ = ["edit_logits"]

_Ids = np.ndarray[tuple[int], np.dtype[np.int64]]


def edit_logits(
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    positions: Sequence[int],
    histories: Sequence[Sequence[int]],
) -> list[int]:
    """Change `logits` [rows, vocabulary] in place, and say which rows.

    `positions`: each row's output position; `histories`: all its tokens so far, prompt and output.
    """
    edited = [row for row, wish in enumerate(params) if wish.edits_logits(positions[row])]
    penalised = [row for row in edited if params[row].penalises]
    if penalised:
        _penalise(logits, penalised, params, positions, histories)
    biased = [(row, token, bias) for row in edited for token, bias in params[row].logit_bias]
    if biased:
        rows, tokens, values = zip(*biased, strict=True)
        bias = torch.tensor(values, dtype=logits.dtype, device=logits.device)
        logits.index_put_((_index(rows, logits), _index(tokens, logits)), bias, accumulate=True)
    barred = [
        (row, token) for row in edited if positions[row] < params[row].min_tokens for token in params[row].end_token_ids
    ]
    if barred:
        rows, tokens = zip(*barred, strict=True)
        logits[_index(rows, logits), _index(tokens, logits)] = -torch.inf
    return edited


def _penalise(
    logits: torch.Tensor,
    rows: Sequence[int],
    params: Sequence[SamplingParams],
    positions: Sequence[int],
    histories: Sequence[Sequence[int]],
) -> None:
    """Penalties of all rows at once, at the tokens that each has seen."""
    counted = [_count(histories[row], positions[row]) for row in rows]
    sizes = [len(tokens) for tokens, _ in counted]
    where = (_index(np.repeat(rows, sizes), logits), _index(np.concatenate([tokens for tokens, _ in counted]), logits))
    times = torch.from_numpy(np.concatenate([count for _, count in counted])).to(logits.device, torch.float32)

    def each(values: Sequence[float]) -> torch.Tensor:
        return torch.from_numpy(np.repeat(np.array(values, np.float32), sizes)).to(logits.device)

    value = logits[where].float()
    repetition = each([params[row].repetition_penalty for row in rows])
    value = torch.where(value > 0, value / repetition, value * repetition)
    value -= each([params[row].frequency_penalty for row in rows]) * times
    value -= each([params[row].presence_penalty for row in rows]) * (times > 0)
    logits[where] = value.to(logits.dtype)


def _count(history: Sequence[int], outputs: int) -> tuple[_Ids, _Ids]:
    """The different tokens of a history, and how often each is among its last `outputs`."""
    tokens = np.array(history, np.int64)
    assert len(tokens) >= outputs, "a row with penalties needs its tokens"
    different, place = np.unique(tokens, return_inverse=True)
    return different, np.bincount(place[len(tokens) - outputs :], minlength=len(different))


def _index(values: Sequence[int] | _Ids, logits: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(np.asarray(values, np.int64)).to(logits.device)
