"""Who gives up its blocks when a running sequence needs one and none is free.

Knows running sequences. Does not know blocks, and does not preempt: `scheduling.batch` does.

The victim's KV is computed again later (preemption by recomputation); its tokens are kept, so its output is the same.
"""

from collections.abc import Iterable

from scheduling.running import RunningSequence

__all__ = ["choose_victim"]


def choose_victim(running: Iterable[RunningSequence], requester: RunningSequence) -> RunningSequence:
    """The sequence that makes room for `requester`'s next token: possibly the requester itself.

    1. A strict sequence never gives way to one that is not.
    2. A sequence that was preempted is not a victim again before it has got further than it was: two that need the
       same block can't undo each other's work for ever. The requester is always a candidate (it decodes, so it is
       past that mark), so there is always a victim; and to a strict requester the protection of others is nothing.
    3. The least urgent service class first. As the requester is a candidate, nobody more urgent than it ever loses.
    4. In a class, the one admitted last. It has the least computed, as a rule; and the one admitted first is safe
       and ends, so that however short the pool, somebody gets on. The order is that of the *first* admission: a
       victim that comes back is as old as before and doesn't become the natural victim of the next shortage.
    """
    candidates = (
        sequence
        for sequence in running
        if sequence is requester
        or (sequence.strict and requester.strict and not sequence.protected)
        or (not sequence.strict and (requester.strict or not sequence.protected))
    )
    return max(candidates, key=_yields_first)


def _yields_first(sequence: RunningSequence) -> tuple[bool, int, int]:
    return (not sequence.strict, sequence.service, sequence.order)
