"""A live run as a run record, out of what the client saw.

Knows observations and how they are told to the recorder: in the order of time, each reply as a step. Does not know how
they were made (`workers.runs.load_player`) or which figures follow.

A client doesn't see an admission: a request is taken for admitted when its first token came, less the time that the
worker says its prefill took. Service is counted as tokens arrive: a prompt with its first token.
"""

from collections.abc import Callable, Iterator, Sequence

from scheduling.cost import CostModel
from scheduling.state import RequestState
from workers.runs.load_player import Observation
from workers.runs.run_record import RequestRecord, RunRecord, RunRecorder
from workers.runs.trace_mix import ArrivingRequest

__all__ = ["live_run"]

_Event = tuple[float, Callable[[float], None]]


def live_run(requests: Sequence[ArrivingRequest], seen: Sequence[Observation], cost: CostModel) -> RunRecord:
    """`requests` and `seen`: place by place the same."""
    recorder = RunRecorder(requests, lambda: [0, 0, 0, 0])
    events: list[_Event] = []
    for record, observation in zip(recorder.records, seen, strict=True):
        events.extend(_Telling(recorder, record, observation, cost).events())
    events.sort(key=lambda event: event[0])  # stable: of one request they are in order already
    for now, tell in events:
        recorder.advance(now)
        tell(now)
    return recorder.record(None)


class _Telling:
    """What happened to one request, as calls of the recorder."""

    def __init__(self, recorder: RunRecorder, record: RequestRecord, observation: Observation, cost: CostModel) -> None:
        self._recorder = recorder
        self._record = record
        self._seen = observation
        self._cost = cost
        self._tokens = 0

    def events(self) -> Iterator[_Event]:
        """In the order of time."""
        record, seen = self._record, self._seen
        record.stages, record.error = seen.stages, seen.error
        record.preemptions = 0 if seen.stages is None else seen.stages.suspensions
        arrived_s = record.request.arrival_s
        yield arrived_s, lambda _now: self._recorder.arrived(record)
        told = sum(seen.delta_tokens)
        deltas = list(zip(seen.delta_s, seen.delta_tokens, strict=True))
        if seen.ended_s is not None and seen.completion_tokens > told:
            # The final was there before some deltas, and is their truth too.
            deltas.append((seen.ended_s, seen.completion_tokens - told))
        if deltas:
            prefill_s = 0.0 if seen.stages is None else seen.stages.prefill or 0.0
            yield max(arrived_s, deltas[0][0] - prefill_s), lambda now: self._recorder.admitted(record, now)
        for time_s, tokens in deltas:
            yield max(arrived_s, time_s), lambda now, tokens=tokens: self._take(tokens, now)  # type: ignore[misc]
        if seen.ended_s is not None:
            yield max(arrived_s, seen.ended_s), lambda now: self._end(now, ran=bool(deltas))

    def _take(self, tokens: int, now: float) -> None:
        record, recorder = self._record, self._recorder
        step = len(recorder.step_ends_s)
        recorder.step_ended(now, now)
        if not self._tokens:
            recorder.service[record.account] += self._cost.prompt(record.request.prompt_tokens)
        for _ in range(tokens):
            self._tokens += 1
            recorder.service[record.account] += self._cost.next_output(self._tokens)
            record.token_steps.append(step)

    def _end(self, now: float, *, ran: bool) -> None:
        outcome = RequestState.FINISHED if self._seen.error is None else RequestState.FAILED
        self._recorder.ended(self._record, outcome, now, ran=ran)
