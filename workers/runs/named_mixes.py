"""Mixes of requests by name, for who has no trace at hand: `chat`, `code`, `summarise`, `5/60/30/5`.

Knows the quantiles of prompt and output lengths of public traces. Does not know arrivals, tenants or flows: a source
says those (`workers.runs.trace_mix`).

Lengths are drawn evenly from the quantiles, so that a mix of any size has the trace's distribution, prompts and outputs
independently of each other (which they are not in the traces: a replay of the trace itself keeps that).
"""

from dataclasses import dataclass
from itertools import pairwise
from random import Random

from scheduling.priority import PriorityClass

__all__ = ["NAMED_MIXES", "NamedMix"]

_P0, _P1, _P2, _P3 = PriorityClass
_AT = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
"""Where the quantiles stand."""


@dataclass(frozen=True, slots=True)
class NamedMix:
    prompt: tuple[int, ...]
    """Quantiles of the prompt's tokens, at `_AT`."""
    output: tuple[int, ...]
    classes: tuple[tuple[PriorityClass, float], ...]
    """Classes and their parts, where the source names none."""

    def lengths(self, count: int, name: str) -> list[tuple[int, int]]:
        """(prompt, output) tokens of so many requests, the same for the same name and count."""
        evenly = [(number + 0.5) / count for number in range(count)]
        prompts = [_interpolated(self.prompt, place) for place in evenly]
        outputs = [_interpolated(self.output, place) for place in evenly]
        Random(f"{name}/{count}/prompt").shuffle(prompts)
        Random(f"{name}/{count}/output").shuffle(outputs)
        return list(zip(prompts, outputs, strict=True))


def _interpolated(quantiles: tuple[int, ...], place: float) -> int:
    for (low, below), (high, above) in pairwise(zip(_AT, quantiles, strict=True)):
        if place <= high:
            return max(1, round(below + (above - below) * (place - low) / (high - low)))
    raise AssertionError(f"{place=} lies beyond 1")


# Azure LLM inference trace 2023, conversation: Azure/AzurePublicDataset, CC-BY 4.0.
_CHAT_PROMPT = (2, 207, 387, 403, 703, 1020, 1071, 1130, 1315, 2734, 4083, 4142, 14050)
_CHAT_OUTPUT = (7, 54, 77, 91, 103, 129, 177, 384, 400, 424, 451, 601, 1000)

NAMED_MIXES = {
    "chat": NamedMix(_CHAT_PROMPT, _CHAT_OUTPUT, ((_P1, 1.0),)),
    # Azure LLM inference trace 2023, code: the same.
    "code": NamedMix(
        (3, 147, 386, 770, 1075, 1469, 1909, 2433, 3192, 5188, 7303, 7436, 7437),
        (6, 7, 8, 9, 11, 13, 16, 20, 29, 55, 90, 251, 1899),
        ((_P1, 1.0),),
    ),
    # Lengths of summaries of arXiv papers: microsoft/vidur, MIT.
    "summarise": NamedMix(
        (1, 1242, 1802, 2150, 2453, 2730, 2996, 3249, 3490, 3702, 3813, 3933, 4054),
        (5, 78, 104, 125, 145, 167, 192, 222, 268, 372, 736, 3271, 4056),
        ((_P2, 1.0),),
    ),
    # A platform's usual day, in per cent by class (design page, section 1), with the lengths of chat.
    "5/60/30/5": NamedMix(_CHAT_PROMPT, _CHAT_OUTPUT, ((_P0, 5.0), (_P1, 60.0), (_P2, 30.0), (_P3, 5.0))),
}
