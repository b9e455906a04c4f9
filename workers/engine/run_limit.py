"""How long a request may take from its admission on.

Knows who was admitted, in that order, and so looks at the oldest alone. Those that have ended behind one that runs for
long are swept out now and then: it holds at most a few times as many as run. Does not know how a request is ended.
Owned by the engine thread.
"""

from collections import deque
from collections.abc import Iterator

from workers.engine.request_table import RequestTable
from workers.intake.request import EngineRequest

__all__ = ["RunLimit"]

_SWEPT_FROM = 64


class RunLimit:
    def __init__(self, max_run_s: float, requests: RequestTable) -> None:
        """`requests`: those that have not ended. Only read."""
        self.max_run_s = max_run_s
        self._requests = requests
        self._admitted: deque[EngineRequest] = deque()
        """In the order of their first admission. Some have ended since, and their rows may be others', even of the
        same arrival."""

    def __len__(self) -> int:
        """Requests that are held, those that have ended included."""
        return len(self._admitted)

    def admitted(self, request: EngineRequest) -> None:
        """For the first time."""
        self._admitted.append(request)
        if len(self._admitted) > _SWEPT_FROM + 2 * len(self._requests.begun):
            self._admitted = deque(each for each in self._admitted if self._lasts(each))

    def overdue(self, now: float) -> Iterator[int]:
        """Rows that have taken for as long as they may, each named once. They may end while this is read."""
        while self._admitted:
            request = self._admitted[0]
            if self._lasts(request):
                admitted_s = request.timeline.admitted_s
                assert admitted_s is not None, f"{request.arrival.id} is among the admitted"
                if now < admitted_s + self.max_run_s:
                    return
                yield request.row
            self._admitted.popleft()

    def _lasts(self, request: EngineRequest) -> bool:
        return self._requests.staged(request.row) is request
