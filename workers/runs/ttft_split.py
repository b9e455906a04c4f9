"""The time to the first token, split into what it was spent on.

Knows a request's stages as the worker told them and its TTFT as the client measured it. What is left of the latter is
*transport*: producing the request, and the first delta's way back.
"""

from collections.abc import Iterable

from topics.stage_times import StageTimes

__all__ = ["TTFT_STAGES", "mean_split", "ttft_split"]

TTFT_STAGES = ("transport", "ingress", "queue", "slot", "prefill")
_OF_WORKER = TTFT_STAGES[1:]


def ttft_split(stages: StageTimes, ttft_s: float) -> dict[str, float]:
    """Seconds by stage; they add up to `ttft_s`, unless the two sides' clocks differ."""
    worker = {name: getattr(stages, name) or 0.0 for name in _OF_WORKER}
    return {"transport": max(0.0, ttft_s - sum(worker.values())), **worker}


def mean_split(splits: Iterable[dict[str, float]]) -> dict[str, float] | None:
    """The mean of each stage; None of none."""
    every = list(splits)
    if not every:
        return None
    return {name: sum(split[name] for split in every) / len(every) for name in TTFT_STAGES}
