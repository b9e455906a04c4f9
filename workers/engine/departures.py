"""How requests leave the engine: with an answer, into another class, or dropped without a word.

Knows what has to forget a row that has ended, what its answer says of it, and that an error is a whole request's: the
sequences beside it end without a word. Does not know why a request ends, nor Kafka (`workers.engine.outbox`). Owned by
the engine thread.
"""

from collections.abc import Collection, Mapping

from scheduling.batch import BatchScheduler
from scheduling.index import Index
from scheduling.length import LengthPredictor
from scheduling.priority import PriorityClass
from scheduling.state import TERMINAL_STATES, RequestState
from topics.control_orders import Cancel
from topics.errors import RequestError
from workers.engine.cancelling import Cancelling
from workers.engine.outbox import Outbox
from workers.engine.request_table import RequestTable
from workers.engine.sequence_groups import SequenceGroups
from workers.engine.timeline import Timeline
from workers.intake.request import Arrival, Ending, FinishReason, Moved
from workers.runners.runner import Embedding

__all__ = ["Departures"]

_DROPS_A_TURN = 1_000
"""Some tens of milliseconds."""


class Departures:
    def __init__(
        self,
        *,
        scheduler: BatchScheduler,
        index: Index,
        lengths: LengthPredictor,
        outbox: Outbox,
        requests: RequestTable,
        groups: SequenceGroups,
        cancelling: Cancelling,
    ) -> None:
        """`lengths`: learns from every answer that came to its end."""
        self._scheduler = scheduler
        self._index = index
        self._lengths = lengths
        self._outbox = outbox
        self._requests = requests
        self._groups = groups
        self._cancelling = cancelling
        self.ended = 0
        """Requests whose last sequence came to its end."""
        self.failed = 0
        """Requests that were answered with an error."""

    def end(
        self, row: int, reason: FinishReason | RequestError | Moved, now: float, embedding: Embedding | None = None
    ) -> None:
        """Hand the ending to egress and forget the row. The scheduler has let go of it already.

        An error, or a move to another class, is its whole request's: the other sequences end without a word.
        """
        arrival, request = self._requests.arrival(row), self._requests.staged(row)
        timeline = Timeline(arrived_s=arrival.arrived_s) if request is None else request.timeline
        timeline.ended_s = now
        prompt = 0 if request is None else len(request.prepared.prompt_token_ids)
        output = 0 if request is None else request.output_tokens
        if isinstance(reason, FinishReason):
            group = self._groups.of(row)
            self.ended += group is None or (len(group.rows) == 1 and not group.short)
            if embedding is None:
                self._observe_length(row, arrival, output)
        else:
            self.failed += isinstance(reason, RequestError)
            self._end_siblings(row, now)
        prepared = None if request is None else request.prepared
        # Nothing was found for one that was never admitted: what the index says then is only hoped for.
        cached = 0 if timeline.admitted_s is None else self._index.cached_tokens[row]
        cost = self._index.cost.prompt(prompt, cached) + self._index.cost.output(output)
        self._outbox.ended(arrival, prepared, Ending(reason, timeline, prompt, output, cached, cost, embedding))
        self._forget(row, arrival.headers.request_id)

    def _observe_length(self, row: int, arrival: Arrival, output_tokens: int) -> None:
        """Of an answer that came to its end."""
        request = self._requests.staged(row)
        predicted = self._index.output_tokens[row] + (0 if request is None else request.told_tokens)
        self._lengths.observe(arrival.origin_class, arrival.tenant, predicted, output_tokens)

    def turn_away(self, arrival: Arrival, error: RequestError, now: float) -> None:
        """Answer a request that never becomes a row."""
        self.failed += 1
        timeline = Timeline(arrived_s=arrival.arrived_s, ended_s=now)
        self._outbox.ended(arrival, None, Ending(error, timeline, prompt_tokens=0, output_tokens=0))

    def fail(self, rows: Collection[int], error: RequestError, now: float) -> None:
        """These rows can't go on."""
        for row in sorted(rows):
            if self._requests.knows(row):  # or it went with another sequence of its request
                self._scheduler.fail(row, now)
                self.end(row, error, now)

    def expire(self, now: float) -> None:
        """Those that still wait past their hard deadline: a slice."""
        for row in self._scheduler.expire(now):
            if self._requests.knows(row):  # or another sequence of its request has expired too
                late_ms = int((now - self._index.hard_deadline_s[row]) * 1000)
                self.end(row, RequestError.expired(late_ms), now)

    def obey(self, orders: Mapping[int, Cancel], now: float) -> None:
        """End rows, wherever they are, and answer each; or let go of those that wait and are to wait elsewhere."""
        errors: dict[Cancel, RequestError] = {}
        """One for each order: thousands may end by it."""
        for row, order in orders.items():
            if not self._requests.knows(row):
                continue  # it went with another sequence of its request
            if order.move_to is None:
                self._scheduler.cancel(row, now)
                error = errors.get(order)
                if error is None:
                    error = errors[order] = RequestError.cancelled(order.reason)
                self.end(row, error, now)
            else:
                self._move(row, PriorityClass.from_label(order.move_to), now)

    def drop_revoked(self, now: float) -> None:
        """A slice of the rows whose partitions are gone: a large backlog must not stop a step."""
        for row in self._requests.next_revoked(_DROPS_A_TURN):
            self._scheduler.cancel(row, now)
            self._forget(row, self._requests.request_id(row))

    def _move(self, row: int, to: PriorityClass, now: float) -> None:
        waiting = (RequestState.WAITING, RequestState.STAGED)
        group = self._groups.of(row)
        # One of its answers may be there already, and told.
        whole = group is None or len(group.rows) == group.joined
        waits = all(self._index.state_of(each) in waiting for each in (row, *self._groups.siblings(row)))
        if whole and waits and self._requests.arrival(row).origin_class is not to:
            self._scheduler.cancel(row, now)
            self.end(row, Moved(to), now)

    def _end_siblings(self, row: int, now: float) -> None:
        group = self._groups.of(row)
        if group is None:
            return
        group.lost = True
        for other in self._groups.siblings(row):
            if self._index.state_of(other) not in TERMINAL_STATES:
                self._scheduler.cancel(other, now)
            self._forget(other, self._requests.request_id(other))

    def _forget(self, row: int, request_id: str) -> None:
        self._cancelling.left(row, request_id)
        self._groups.leave(row)
        self._requests.forget(row)
        self._index.release(row)
