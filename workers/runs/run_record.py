"""What happened in a run: each request's times and tokens, and once a second what every tenant had received.

Knows requests, steps and totals. Does not know figures (`workers.runs.run_results`, `workers.runs.fairness` compute
them) or how a run came about: a simulated one is told by the engine itself, a live one by the replies that came, each
of which counts as a step that nothing else is known of.

**Account**: a (service class, tenant) pair, the smallest party between which shares are compared.

**Ticks.** At every full second of the run: service by account, queue by class, sequences running, borrowed cost by
class. An account is *backlogged* in a second if it had a request waiting at every moment of it. Memory is bounded: past
`MAX_TICKS` every second tick is dropped and the interval doubles.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcache.statistics import KVCacheStatistics
from scheduling.batch_statistics import BatchStatistics
from scheduling.length import LengthStatistics
from scheduling.priority import PriorityClass
from scheduling.state import RequestState
from topics.stage_times import StageTimes
from workers.runs.trace_mix import ArrivingRequest

__all__ = ["MAX_TICKS", "Account", "EngineTotals", "RequestRecord", "RunRecord", "RunRecorder", "Ticks"]

MAX_TICKS = 16_384
"""4½ hours of seconds."""

Account = tuple[PriorityClass, str]


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request's run. Written by the recorder alone."""

    request: ArrivingRequest
    account: int
    """Place in `RunRecord.accounts`."""
    admitted_s: float | None = None
    """First admission."""
    ended_s: float | None = None
    outcome: RequestState | None = None
    """None: the run was cut off before it ended."""
    preemptions: int = 0
    prompt_computed: int = 0
    """The most prompt tokens that were ever computed: what is computed again is not service."""
    stages: StageTimes | None = None
    """Of a live run: where the time went, as the worker said."""
    error: str | None = None
    """Of a live run: the code of the error that it was answered with."""
    token_steps: "array[int]" = field(default_factory=lambda: array("I"))
    """The step that gave each output token."""


@dataclass(frozen=True, slots=True)
class Ticks:
    """Snapshots. Row *k* of each array is the state at second `(k + 1) × interval_s`."""

    interval_s: float
    service: NDArray[np.int64]
    """Ticks × accounts: cost of prompt and output tokens since the start, recomputation left out."""
    backlogged: NDArray[np.bool_]
    """Ticks × accounts: something waited at every moment of the interval that ends here."""
    queued: NDArray[np.int64]
    """Ticks × classes: requests that wait, preempted ones included."""
    running: NDArray[np.int64]
    borrowed: NDArray[np.int64]
    """Ticks × classes: cost run on others' rates since the start."""
    queue_seconds: NDArray[np.float64]
    """Integral of the queue's length over the interval that ends here."""
    queue_squared_seconds: NDArray[np.float64]
    """Integral of its square."""


@dataclass(frozen=True, slots=True)
class EngineTotals:
    batch: BatchStatistics
    kv: KVCacheStatistics
    lengths: LengthStatistics


@dataclass(frozen=True, slots=True)
class RunRecord:
    requests: tuple[RequestRecord, ...]
    """In order of arrival."""
    accounts: tuple[Account, ...]
    ticks: Ticks
    step_ends_s: "array[float]"
    """When each step was over."""
    longest_step_s: float
    busy_s: float
    """Sum of all steps."""
    end_s: float
    """When the last step was over."""
    engine: EngineTotals | None
    """None: the run was seen from a client."""

    @property
    def batch(self) -> BatchStatistics:
        assert self.engine is not None, "a client can't know it"
        return self.engine.batch

    @property
    def kv(self) -> KVCacheStatistics:
        assert self.engine is not None, "a client can't know it"
        return self.engine.kv


class RunRecorder:
    """Takes notes while a run goes on. Times never go back."""

    def __init__(
        self,
        requests: Sequence[ArrivingRequest],
        borrowed_cost: Callable[[], Sequence[int]],
        interval_s: float = 1.0,
    ) -> None:
        """`borrowed_cost`: by class, since the start; asked once a tick."""
        self.accounts = tuple(sorted({(request.priority, request.tenant) for request in requests}))
        places = {account: place for place, account in enumerate(self.accounts)}
        self.records = tuple(RequestRecord(request, places[request.priority, request.tenant]) for request in requests)
        self._borrowed_cost = borrowed_cost
        self._interval_s = interval_s
        self._now_s = 0.0
        self._tick = 1
        """The number of the next tick."""
        self.service = [0] * len(self.accounts)
        self._waiting = [0] * len(self.accounts)
        self._always_waiting = bytearray(len(self.accounts))
        self._queued = [0] * len(PriorityClass)
        self._queue = 0
        self._running = 0
        self._queue_s = self._queue_squared_s = 0.0
        self._ticks = _TickColumns()
        self.step_ends_s: array[float] = array("d")
        self._longest_step_s = self._busy_s = 0.0

    # --- what happens ---------------------------------------------------------------------------------------------

    def arrived(self, record: RequestRecord) -> None:
        self._wait(record, 1)

    def admitted(self, record: RequestRecord, now: float) -> None:
        if record.admitted_s is None:
            record.admitted_s = now
        self._running += 1
        self._wait(record, -1)

    def preempted(self, record: RequestRecord) -> None:
        record.preemptions += 1
        self._running -= 1
        self._wait(record, 1)

    def ended(self, record: RequestRecord, outcome: RequestState, now: float, *, ran: bool) -> None:
        """`ran`: it held a slot until now, rather than waiting."""
        assert record.outcome is None, f"request {record.request.number} ended twice"
        record.outcome = outcome
        record.ended_s = now
        if ran:
            self._running -= 1
        else:
            self._wait(record, -1)

    def advance(self, now: float) -> None:
        """Time passes; nothing has changed since the last call but what was told at that time."""
        while self._tick * self._interval_s <= now:
            self._pass(self._tick * self._interval_s)
            self._snapshot()
        self._pass(now)

    def step_ended(self, started_s: float, now: float) -> None:
        """Call `advance(now)` first, then this, then add to `service`: a step's service is received at its end."""
        seconds = now - started_s
        self.step_ends_s.append(now)
        self._busy_s += seconds
        self._longest_step_s = max(self._longest_step_s, seconds)

    def record(self, engine: EngineTotals | None) -> RunRecord:
        """The run is over. The last, incomplete interval has no tick."""
        return RunRecord(
            requests=self.records,
            accounts=self.accounts,
            ticks=self._ticks.freeze(self._interval_s, len(self.accounts)),
            step_ends_s=self.step_ends_s,
            longest_step_s=self._longest_step_s,
            busy_s=self._busy_s,
            end_s=self.step_ends_s[-1] if self.step_ends_s else 0.0,
            engine=engine,
        )

    # --- books ----------------------------------------------------------------------------------------------------

    def _wait(self, record: RequestRecord, change: int) -> None:
        account = record.account
        waiting = self._waiting[account] = self._waiting[account] + change
        assert waiting >= 0, f"{self.accounts[account]}: {waiting} requests wait"
        if waiting == 0:
            self._always_waiting[account] = 0
        self._queued[record.request.priority] += change
        self._queue += change

    def _pass(self, now: float) -> None:
        seconds = now - self._now_s
        self._queue_s += seconds * self._queue
        self._queue_squared_s += seconds * self._queue * self._queue
        self._now_s = now

    def _snapshot(self) -> None:
        ticks = self._ticks
        ticks.service.extend(self.service)
        ticks.backlogged.extend(self._always_waiting)
        ticks.queued.extend(self._queued)
        ticks.running.append(self._running)
        ticks.borrowed.extend(self._borrowed_cost())
        ticks.queue_s.append(self._queue_s)
        ticks.queue_squared_s.append(self._queue_squared_s)
        self._queue_s = self._queue_squared_s = 0.0
        self._always_waiting = bytearray(waiting > 0 for waiting in self._waiting)
        self._tick += 1
        if len(ticks.running) == MAX_TICKS:
            ticks.halve(len(self.accounts))
            self._interval_s *= 2
            self._tick = MAX_TICKS // 2 + 1


class _TickColumns:
    """The growing form of `Ticks`, flat."""

    def __init__(self) -> None:
        self.service: array[int] = array("q")
        self.backlogged = bytearray()
        self.queued: array[int] = array("q")
        self.running: array[int] = array("q")
        self.borrowed: array[int] = array("q")
        self.queue_s: array[float] = array("d")
        self.queue_squared_s: array[float] = array("d")

    def freeze(self, interval_s: float, accounts: int) -> Ticks:
        classes = len(PriorityClass)
        return Ticks(
            interval_s=interval_s,
            service=_table(self.service, np.int64, accounts),
            backlogged=_table(self.backlogged, np.bool_, accounts),
            queued=_table(self.queued, np.int64, classes),
            running=_table(self.running, np.int64, 1)[:, 0],
            borrowed=_table(self.borrowed, np.int64, classes),
            queue_seconds=_table(self.queue_s, np.float64, 1)[:, 0],
            queue_squared_seconds=_table(self.queue_squared_s, np.float64, 1)[:, 0],
        )

    def halve(self, accounts: int) -> None:
        """Two intervals become one: states are the later one's, integrals add up, backlogged is both."""
        ticks = self.freeze(1.0, accounts)
        self.service = array("q", ticks.service[1::2].tobytes())
        self.backlogged = bytearray((ticks.backlogged[::2] & ticks.backlogged[1::2]).tobytes())
        self.queued = array("q", ticks.queued[1::2].tobytes())
        self.running = array("q", ticks.running[1::2].tobytes())
        self.borrowed = array("q", ticks.borrowed[1::2].tobytes())
        self.queue_s = array("d", (ticks.queue_seconds[::2] + ticks.queue_seconds[1::2]).tobytes())
        self.queue_squared_s = array(
            "d", (ticks.queue_squared_seconds[::2] + ticks.queue_squared_seconds[1::2]).tobytes()
        )


def _table(flat: "array[Any] | bytearray", kind: Any, columns: int) -> NDArray[Any]:
    """A copy of a flat column as a table of so many columns."""
    return np.frombuffer(flat, dtype=kind).reshape(-1, max(1, columns)).copy()
