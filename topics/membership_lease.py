"""How long a member of a group can be sure that its partitions are still its own.

Knows when the group last confirmed the membership. Does not know Kafka, or what hangs on it
(`workers.attempts.attempts`).

The group gives partitions away when it has not heard of a member for a session time-out. So until then, counted from
the sending of the last heartbeat or question for an assignment that was answered, nobody else owns them; afterwards
perhaps somebody does. A process that was stopped and wakes up finds its lease expired, before anybody tells it: also
one that was stopped between an answer and what it does with it.
"""

import time
from collections.abc import Callable

__all__ = ["MembershipLease"]

_CERTAIN = 0.9
"""Of the session time-out: two clocks run differently, and an answer to a join takes its time."""


class MembershipLease:
    def __init__(
        self,
        session_timeout_s: float,
        on_confirmed: Callable[[], None],
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_confirmed` is called each time that the group confirms. `monotonic_s` must count while the process is
        stopped, too."""
        self._length_s = _CERTAIN * session_timeout_s
        self._on_confirmed = on_confirmed
        self._monotonic_s = monotonic_s
        self._until_s: float | None = None

    def confirmed(self, asked_s: float) -> None:
        """The group answered that we are a member, to what was sent at `asked_s`."""
        until_s = asked_s + self._length_s
        # Answers may come in another order than their questions were sent.
        self._until_s = until_s if self._until_s is None else max(self._until_s, until_s)
        self._on_confirmed()

    @property
    def holds(self) -> bool:
        return self._until_s is not None and self._monotonic_s() < self._until_s
