"""What the phases of `bench urgent` say: where each urgent request's time went, and what the batch paid for it.

Knows recorded requests and steps. Does not know how they came about.

**Parts of a TTFT**, one after the other: *ingress* (sent → in the worker), *residual step* (what was left of the step
that ran then), *queue* (until its tokens were made, and the engine knew), *slot/KV wait* (until it was admitted),
*prefill* (until its first token), *reply* (until the client had it).

**Makespan** is decided by price, not by the clock: all steps of all phases fit one table (`workers.models.warm_up`),
and each phase's own steps cost what the table says. The clock stands beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workers.bench.recorded_steps import RecordedStep, priced_s
from workers.bench.urgent import Phase, RequestRecord
from workers.models.warm_up import MeasuredStep, fit_step_time

__all__ = ["PARTS", "NoLoadError", "check_load", "makespans", "phase_figures", "ttft_parts"]

PARTS = ("ingress", "residual step", "queue", "slot/KV wait", "prefill", "reply")
_CHANGE_HANDS = 20
"""One slot in so many may just be between two requests."""


class NoLoadError(Exception):
    """An urgent request came to an engine that was not full, or for which nothing waited: the phase shows nothing."""


def ttft_parts(request: RequestRecord, steps: Sequence[RecordedStep]) -> dict[str, float]:
    """Seconds by part; they add up to the TTFT."""
    running = next((step for step in steps if step.started_s <= request.arrived_s < step.ended_s), None)
    free_s = request.arrived_s if running is None else min(running.ended_s, request.admitted_s)
    staged_s = min(max(free_s, request.staged_s), request.admitted_s)
    moments = (
        request.sent_s,
        request.arrived_s,
        free_s,
        staged_s,
        request.admitted_s,
        request.first_token_s,
        request.first_delta_s,
    )
    return {part: after - before for part, before, after in zip(PARTS, moments, moments[1:], strict=False)}


@dataclass(frozen=True, slots=True)
class Full:
    """What urgent requests met: the least of it."""

    running: int
    waiting: int


def check_load(phase: Phase, *, slots: bool) -> Full:
    """What each urgent request met when it came. `slots`: the running limit must have been reached, but for the slot
    that is left to urgent ones and those that change hands (a twentieth of all); else only that work waited.

    Raises `NoLoadError`.
    """
    least = Full(phase.max_sequences, len(phase.requests))
    full = phase.max_sequences - max(1, phase.max_sequences // _CHANGE_HANDS)
    for number, request in enumerate((one for one in phase.requests if one.urgent), 1):
        running = sum(other.runs_at(request.arrived_s) for other in phase.requests)
        waiting = sum(other.waits_at(request.arrived_s) for other in phase.requests if other is not request)
        if waiting < 1 or (slots and running < full):
            raise NoLoadError(
                f"{phase.name}: urgent request {number} met {running} running (of {phase.max_sequences}) and {waiting} "
                "waiting: give more --requests, or a shorter --interval"
            )
        least = Full(min(least.running, running), min(least.waiting, waiting))
    return least


def phase_figures(phase: Phase) -> dict[str, Any]:
    """Of one phase. Times in seconds."""
    urgent = [request for request in phase.requests if request.urgent]
    batch = [request for request in phase.requests if not request.urgent]
    ttft = [request.ttft_s for request in urgent]
    parts = [ttft_parts(request, phase.steps) for request in urgent]
    lengths = [step.seconds for step in phase.steps]
    figures: dict[str, Any] = {
        "ttft_p50_s": float(np.percentile(ttft, 50)),
        "ttft_p95_s": float(np.percentile(ttft, 95)),
        "ttft_max_s": max(ttft),
        "step_p50_s": float(np.percentile(lengths, 50)),
        "step_max_s": max(lengths),
        "steps": len(lengths),
        "ttft_parts_p50_s": {part: float(np.percentile([one[part] for one in parts], 50)) for part in PARTS},
        "ttft_parts_max_s": {part: max(one[part] for one in parts) for part in PARTS},
    }
    if batch:
        begun_s, over_s = (min(one.sent_s for one in batch), max(one.ended_s for one in batch))
        figures["batch_tokens_s"] = sum(one.output_tokens for one in batch) / (over_s - begun_s)
        figures["makespan_wall_s"] = max(one.ended_s for one in phase.requests) - begun_s
    return figures | _preemption(phase)


def _preemption(phase: Phase) -> dict[str, Any]:
    """Who was suspended, and what that cost."""
    if not phase.engine.preemptions:
        return {"preemptions": 0}
    times = phase.engine.preemption_times
    return {
        "preemptions": phase.engine.preemptions,
        "swapped": times.swapped,
        "recomputed": times.recomputed,
        "lost_s": times.cost_s,
        "lost_estimated_s": times.estimated_s,
        "room_usable_mean_ms": 1e3 * times.usable.sum_s / max(1, times.usable.count),
        "room_usable_max_ms": 1e3 * times.usable.most_s,
        "resume_queue_mean_s": times.queued.sum_s / max(1, times.queued.count),
        "resume_queue_max_s": times.queued.most_s,
        "suspended_mean_s": times.suspended.sum_s / max(1, times.suspended.count),
        "suspended_max_s": times.suspended.most_s,
    }


def makespans(phases: Sequence[Phase]) -> dict[str, float]:
    """By phase, what its steps take by one table that is fitted on the steps of all."""
    measured = [
        MeasuredStep(step.prefill_tokens, step.decode_sequences, step.context_tokens, step.seconds)
        for phase in phases
        for step in phase.steps
    ]
    prices = fit_step_time(measured)
    return {phase.name: priced_s(phase.steps, prices) for phase in phases}
