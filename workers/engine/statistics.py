"""The figures of `workers.engine.engine` at one moment."""

from dataclasses import dataclass

from scheduling.suspension import SuspensionStatistics
from workers.engine.preemption_times import PreemptionTimesStatistics
from workers.engine.speculation import SpeculationStatistics

__all__ = ["EngineStatistics"]


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    steps: int
    prefill_tokens: int
    decode_tokens: int
    step_seconds: float
    """Inside the runner."""
    python_seconds: float
    """Around the runner in turns that ran a step: messages, scheduling, settling. Wall time."""
    python_cpu_seconds: float
    """The part of it in which this thread had a processor. The rest is waiting: mostly for the interpreter's lock."""
    waiting: int
    running: int
    ended: int
    failed: int
    preemptions: int
    suspensions: SuspensionStatistics
    preemption_times: PreemptionTimesStatistics
    speculation: SpeculationStatistics | None
    """None: no tokens are guessed."""
