"""Sequences that the scheduler has handed out and whose attempt is to be noted as soon as the journal has room.

Knows their order, and whether the journal has room. Does not know what is noted or who may begin
(`workers.attempts.attempts`). Nothing is acknowledged while the broker is away, and so nothing is begun.

`put` is the engine thread's; all else is the event loop's, which alone takes out. A request is taken out in constant
time: thousands may end at once.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable

from topics.progress_journal import ProgressJournal
from workers.attempts.start_gate import ArrivalKey, arrival_key
from workers.intake.staging import StageJob

__all__ = ["StartQueue"]


class StartQueue:
    """Bounded by what the scheduler hands out."""

    def __init__(
        self,
        journal: ProgressJournal,
        *,
        call_soon: Callable[[Callable[[], None]], object],
        begin: Callable[[StageJob], None],
        emptied: Callable[[], None],
    ) -> None:
        """`begin` takes the next one while there is room; then `emptied` is called."""
        self._journal = journal
        self._call_soon = call_soon
        self._begin = begin
        self._emptied = emptied
        self._put: deque[StageJob] = deque()
        """Handed over by the engine thread, and not sorted in yet."""
        self._jobs: OrderedDict[ArrivalKey, list[StageJob]] = OrderedDict()
        """By request, in the order of their first sequences."""
        self._told = False
        """The loop is to look."""
        self._waiting: asyncio.Future[None] | None = None
        """For room."""

    def put(self, job: StageJob) -> None:
        self._put.append(job)
        if not self._told:
            self._told = True
            self._call_soon(self._take)

    def look_when_there_is_room(self) -> None:
        if self._waiting is None or self._waiting.done():
            self._waiting = asyncio.ensure_future(self._journal.wait_for_room())
            self._waiting.add_done_callback(lambda _: self._take())

    def withdraw(self, key: ArrivalKey) -> list[StageJob]:
        """Take these sequences out."""
        self._sort_in()
        return self._jobs.pop(key, [])

    def keys(self) -> list[ArrivalKey]:
        """Whose sequences are in it."""
        self._sort_in()
        return list(self._jobs)

    def _sort_in(self) -> None:
        while self._put:
            job = self._put.popleft()
            self._jobs.setdefault(arrival_key(job.arrival), []).append(job)

    def _take(self) -> None:
        self._told = False
        self._sort_in()
        while self._jobs:
            if not self._journal.has_room:
                self.look_when_there_is_room()
                return
            _, jobs = self._jobs.popitem(last=False)
            for job in jobs:
                self._begin(job)
        self._emptied()
