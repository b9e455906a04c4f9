"""The life of a request, as one enum and the one table of its legal moves.

Knows the states and which may follow which. Does not know why a request moves; `scheduling.index.Index.move`
is the one place that changes a state, and it asks this table.
"""

from enum import IntEnum

__all__ = ["TERMINAL_STATES", "TRANSITIONS", "RequestState"]


class RequestState(IntEnum):
    """Where a request is. The value is stored in the index's state column."""

    WAITING = 0
    """In the queueing discipline; its prompt is not tokenised."""
    STAGED = 1
    """In the queueing discipline, with template rendered, tokenised and hashed: it may be dispatched."""
    CLAIMED = 2
    """Picked by the discipline, not admitted yet: its tokens are still being made, or it doesn't fit.

    It goes first in its class.
    """
    PREFILL = 3
    """Admitted: it holds a sequence slot and blocks, and part of its prompt is still to be computed."""
    DECODE = 4
    """Admitted, prompt computed: each step gives it one token."""
    FINISHED = 5
    """Ended with a token, a stop string or a limit."""
    FAILED = 6
    """Ended with an error: refused at staging, a fault of the engine."""
    CANCELLED = 7
    """Ended by its caller or by an operator."""
    EXPIRED = 8
    """Ended because its hard deadline passed before it was admitted."""


TERMINAL_STATES = frozenset({RequestState.FINISHED, RequestState.FAILED, RequestState.CANCELLED, RequestState.EXPIRED})

_ENDS_EARLY = {RequestState.FAILED, RequestState.CANCELLED, RequestState.EXPIRED}

TRANSITIONS: dict[RequestState, frozenset[RequestState]] = {
    RequestState.WAITING: frozenset({RequestState.STAGED, RequestState.CLAIMED} | _ENDS_EARLY),
    RequestState.STAGED: frozenset({RequestState.CLAIMED} | _ENDS_EARLY),
    # Back to WAITING or STAGED: a claim given up keeps its place (`Qdisc.requeue`; nothing asks for it yet).
    RequestState.CLAIMED: frozenset({RequestState.PREFILL, RequestState.WAITING, RequestState.STAGED} | _ENDS_EARLY),
    RequestState.PREFILL: frozenset(
        {RequestState.DECODE, RequestState.FINISHED, RequestState.FAILED, RequestState.CANCELLED}
    ),
    RequestState.DECODE: frozenset(
        {RequestState.FINISHED, RequestState.FAILED, RequestState.CANCELLED, RequestState.PREFILL}
    ),
    RequestState.FINISHED: frozenset(),
    RequestState.FAILED: frozenset(),
    RequestState.CANCELLED: frozenset(),
    RequestState.EXPIRED: frozenset(),
}
"""DECODE → PREFILL is a preemption by recomputation: the tokens are kept, their KV is computed again."""
