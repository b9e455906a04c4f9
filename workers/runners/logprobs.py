"""Log probabilities of drawn tokens: what a request may ask for beside its text, worked out for a batch at once.

Knows logits and tokens. Does not know text or JSON (`workers.answers.answer_logprobs`).

They are of **the model's own distribution**: before temperature, penalties, bias and truncation, as vLLM gives them. So
they say how likely the model held the token, whichever way it was chosen, and are the same for a greedy and for a
sampled request.
"""

from collections.abc import Sequence

import torch

from workers.intake.sampling import SamplingParams, TokenLogprobs

__all__ = ["ModelLogprobs"]


class ModelLogprobs:
    """The distributions of those rows of a batch that ask for them; made before the logits are edited."""

    def __init__(self, logits: torch.Tensor, params: Sequence[SamplingParams]) -> None:
        """`logits` [rows, vocabulary] of any float format. Rows that don't ask are not looked at."""
        self._params = params
        self._rows = [row for row, wish in enumerate(params) if wish.logprobs is not None]
        if not self._rows:
            return
        index = torch.tensor(self._rows, device=logits.device)
        self._logprobs = logits[index].float().log_softmax(dim=-1)

    def of(self, tokens: torch.Tensor) -> dict[int, TokenLogprobs]:
        """By row, for the drawn `tokens` [rows]."""
        if not self._rows:
            return {}
        drawn = tokens[torch.tensor(self._rows, device=tokens.device)]
        own = self._logprobs.gather(1, drawn[:, None])[:, 0]
        wanted = [self._params[row].logprobs or 0 for row in self._rows]
        # Largest first; equal ones in no promised order, for none is more likely than the other.
        values, ids = self._logprobs.topk(min(max(wanted), self._logprobs.shape[1]), dim=-1)
        lists = zip(drawn.tolist(), own.tolist(), values.tolist(), ids.tolist(), strict=True)
        return {
            row: TokenLogprobs(token, logprob, tuple(zip(best[:count], likely[:count], strict=True)))
            for row, count, (token, logprob, likely, best) in zip(self._rows, wanted, lists, strict=True)
        }
