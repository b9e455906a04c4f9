"""The figures of `scheduling.batch` at one moment."""

from dataclasses import dataclass

from scheduling.step_time import StepTimeStatistics
from scheduling.suspension import SuspensionStatistics

__all__ = ["BatchStatistics"]


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    queued: int
    """In the discipline, staged or not."""
    claimed: int
    """Picked, not admitted."""
    staging: int
    """With the staging thread."""
    staged: int
    """Tokenised, not admitted."""
    running: int
    """Hold a slot and blocks."""
    preempted: int
    """Admitted before, waiting for blocks to go on."""
    steps: int
    prefill_tokens: int
    """Computed, recomputation included."""
    decode_tokens: int
    """Computed by decodes."""
    admitted: int
    readmitted: int
    backfills: int
    """Admissions past a more urgent class's front."""
    preemptions: int
    lost_tokens: int
    """Computed and given up by preemption."""
    recomputed_tokens: int
    """Computed once more for it: the others were found in the prefix cache or swapped in, or not needed any more."""
    suspensions: SuspensionStatistics
    shortened_steps: int
    """For a TPOT target (`scheduling.step_cap`)."""
    expired: int
    impossible: int
    step_time: StepTimeStatistics
