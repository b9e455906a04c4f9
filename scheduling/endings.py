"""How requests end: finished, cancelled, failed, expired, or impossible from the start.

Knows what a request may hold wherever it is (a place in a queue, a claim, a slot and blocks, swapped KV, a place in the
staging window) and that all of it is let go of once. Does not know why one ends: whoever calls does. Works for
`scheduling.batch.BatchScheduler`, on its state.
"""

from kvcache.manager import KVCacheManager
from scheduling.claims import Claims
from scheduling.cost import CostModel
from scheduling.deadlines import Deadlines
from scheduling.index import Index
from scheduling.qdisc import Qdisc
from scheduling.running import RunningSequence, RunningSet
from scheduling.staging_window import StagingWindow
from scheduling.state import RequestState

__all__ = ["Endings"]

_NOT_ADMITTED = (RequestState.WAITING, RequestState.STAGED, RequestState.CLAIMED)


class Endings:
    def __init__(
        self,
        *,
        qdisc: Qdisc,
        index: Index,
        kv: KVCacheManager,
        cost: CostModel,
        running: RunningSet,
        claims: Claims,
        window: StagingWindow,
        expiries_a_call: int,
    ) -> None:
        self._qdisc = qdisc
        self._index = index
        self._kv = kv
        self._cost = cost
        self._running = running
        self._claims = claims
        self._window = window
        self._expiries_a_call = expiries_a_call
        self._deadlines = Deadlines(self._still_due)
        self._impossible: list[int] = []
        self._expired = self._impossible_ever = 0

    @property
    def expired(self) -> int:
        return self._expired

    @property
    def impossible_ever(self) -> int:
        return self._impossible_ever

    # --- hard deadlines -------------------------------------------------------------------------------------------

    def watch_deadline(self, row: int) -> None:
        """A new row: it is EXPIRED if it still waits at its hard deadline."""
        self._deadlines.add(row, self._index.hard_deadline_s[row])

    def next_deadline(self) -> float | None:
        return self._deadlines.next_due()

    def expire(self, now: float) -> list[int]:
        """End waiting rows whose hard deadline has passed, at most `expiries_a_call`."""
        rows: list[int] = []
        while len(rows) < self._expiries_a_call and (row := self._deadlines.take_passed(now)) is not None:
            self.end(row, RequestState.EXPIRED, now)
            rows.append(row)
        self._expired += len(rows)
        return rows

    def _still_due(self, row: int, deadline_s: float) -> bool:
        return self._index.state[row] in _NOT_ADMITTED and self._index.hard_deadline_s[row] == deadline_s

    # --- what can never run ---------------------------------------------------------------------------------------

    def impossible(self, row: int, now: float) -> None:
        self.end(row, RequestState.FAILED, now)
        self._impossible.append(row)
        self._impossible_ever += 1

    def take_impossible(self) -> list[int]:
        rows, self._impossible = self._impossible, []
        return rows

    # --- the one way out ------------------------------------------------------------------------------------------

    def end(self, row: int, state: RequestState, now: float) -> bool:
        """Let go of what the row holds, wherever it is, and move it to a terminal state. True: it was running."""
        before = self._index.state_of(row)
        running = False
        if before in (RequestState.WAITING, RequestState.STAGED):
            self._qdisc.cancel(row, now)
        elif before is RequestState.CLAIMED:
            self._claims.drop_claimed(self._index.service_of(row), row)
            self._qdisc.settle(row, now, refund=self._cost.prompt_of(self._index, row))
        else:
            running = row in self._running
            sequence = self._leave_engine(row)
            index, cost = self._index, self._cost
            computed = min(sequence.prompt_tokens, sequence.most_computed_tokens) - index.cached_tokens[row]
            self._qdisc.settle(row, now, refund=cost.prompt_of(index, row) - cost.prompt(max(0, computed)))
        self._window.leave(row)
        self._index.move(row, state)
        return running

    def _leave_engine(self, row: int) -> RunningSequence:
        """Take an admitted row's slot and blocks, or its place among the preempted."""
        sequence = self._running.get(row)
        if sequence is not None:
            self._running.remove(sequence)
            self._kv.release(row)
        else:
            sequence = self._claims.preempted(row)
            assert sequence is not None, f"row {row} is {self._index.state_of(row).name} and is nowhere"
            self._claims.drop_preempted(sequence)
            self._kv.forget_swapped(row)
        sequence.ended = True
        return sequence
