"""The index: one row for each request the worker knows, in columns. The row *is* the queue entry.

Knows the scheduling facts of a request (class, tenant, flow, predicted tokens and cost, deadlines, state). Does not
know payloads, Kafka positions or tokens: their owners keep them beside the index, by row number. Owned by the engine
thread; nothing here is safe to share.

A row is a small integer, recycled after `release`. The columns are public to *read* (`index.state[row]`), for
disciplines look at them for every request; only the methods write. A column grows in place, so a reference to it
may be kept.

About 60 bytes a row, and at most 200 with the names of its tenant and flow where a flow has a few requests.
"""

from array import array
from dataclasses import dataclass
from math import inf

from scheduling.columns import grown
from scheduling.cost import CostModel
from scheduling.interner import Interner
from scheduling.priority import PriorityClass
from scheduling.state import TERMINAL_STATES, TRANSITIONS, RequestState

__all__ = ["Index", "IndexFull", "IndexStatistics"]

_FREE = 255
"""In the state column: the row is not in use."""
_STATES = len(RequestState)
_CLASSES = len(PriorityClass)
_LEGAL = tuple(sum(1 << after for after in TRANSITIONS[before]) for before in RequestState)
"""TRANSITIONS as bit sets: bit *after* of item *before*."""
_TERMINAL = sum(1 << state for state in TERMINAL_STATES)
_MAX_TOKENS = 2**32 - 1


class IndexFull(Exception):
    """The index holds as many rows as it may. Backpressure: pause the partition until rows are released."""


@dataclass(frozen=True, slots=True)
class IndexStatistics:
    rows: int
    capacity: int
    rows_peak: int
    """The most rows at once since the start."""
    added: int
    released: int
    by_state: dict[RequestState, int]
    """Rows in each state now; terminal states count rows that are not released yet."""
    tenants: int
    flows: int
    column_bytes: int
    """Memory of the columns; names come on top."""


class Index:
    """Rows in columns.

    Columns (read only from outside), each indexed by row:

    - `state`, `origin`, `service`: `RequestState`, and two `PriorityClass`es, as plain ints. The origin class is
      the topic's and never changes; the service class may be lowered once.
    - `tenant`, `flow`: numbers of `tenants` and `flows` (flows are scoped by tenant).
    - `prompt_tokens`, `output_tokens`: predicted; the prompt's become exact at staging (`set_tokens`).
    - `cached_tokens`: of the prompt, found in the prefix cache (0 until looked up).
    - `prompt_cost`, `output_cost`: what these tokens cost, in units of `cost`; always up to date with them.
    - `arrival_s`: monotonic. `ttft_deadline_s`: when its first token is due; it orders, it never expires.
      `hard_deadline_s`: when the request expires. Both are `inf` for none.
    """

    def __init__(self, capacity: int = 1_000_000, initial_rows: int = 1024, cost: CostModel | None = None) -> None:
        """`capacity`: the most rows at once. Memory grows from `initial_rows` up to it."""
        if capacity < 1 or initial_rows < 1:
            raise ValueError(f"an index needs at least one row, got {capacity=}, {initial_rows=}")
        self.capacity = capacity
        self.cost = cost or CostModel()
        self.tenants: Interner[str] = Interner()
        self.flows: Interner[str] = Interner()
        self.state = bytearray()
        self.origin = bytearray()
        self.service = bytearray()
        self.tenant: array[int] = array("I")
        self.flow: array[int] = array("I")
        self.prompt_tokens: array[int] = array("I")
        self.output_tokens: array[int] = array("I")
        self.cached_tokens: array[int] = array("I")
        self.prompt_cost: array[int] = array("I")
        self.output_cost: array[int] = array("I")
        self.arrival_s: array[float] = array("d")
        self.ttft_deadline_s: array[float] = array("d")
        self.hard_deadline_s: array[float] = array("d")
        self._free: array[int] = array("I")
        self._used = 0
        """Rows below this were in use at least once."""
        self._allocated = 0
        self._rows = 0
        self._rows_peak = 0
        self._added = 0
        self.cached_rows = 0
        """Rows in use of whose prompt something was found in the prefix cache. Read only."""
        self._counts = [0] * (_CLASSES * _STATES)
        """Rows by service class and state."""
        self._grow(min(initial_rows, capacity))

    # --- rows -----------------------------------------------------------------------------------------------------

    def add(
        self,
        *,
        origin: PriorityClass,
        tenant: str,
        flow: str,
        prompt_tokens: int,
        output_tokens: int,
        arrival_s: float,
        service: PriorityClass | None = None,
        ttft_deadline_s: float = inf,
        hard_deadline_s: float = inf,
    ) -> int:
        """A new row in state WAITING. `service` defaults to `origin` and may only be lower.

        Raises `IndexFull`.
        """
        service = origin if service is None else service
        assert service >= origin, f"{service!r} is more urgent than the request's topic allows ({origin!r})"
        assert 0 <= prompt_tokens <= _MAX_TOKENS, f"{prompt_tokens=}"
        assert 0 <= output_tokens <= _MAX_TOKENS, f"{output_tokens=}"
        row = self._take_row()
        tenant_number = self.tenants.intern(tenant)
        self.state[row] = RequestState.WAITING
        self.origin[row] = origin
        self.service[row] = service
        self.tenant[row] = tenant_number
        self.flow[row] = self.flows.intern(f"{tenant_number}\0{flow}")
        self.prompt_tokens[row] = prompt_tokens
        self.output_tokens[row] = output_tokens
        self.cached_tokens[row] = 0
        self.prompt_cost[row] = self.cost.prompt(prompt_tokens)
        self.output_cost[row] = self.cost.output(output_tokens)
        self.arrival_s[row] = arrival_s
        self.ttft_deadline_s[row] = ttft_deadline_s
        self.hard_deadline_s[row] = hard_deadline_s
        self._counts[service * _STATES + RequestState.WAITING] += 1
        return row

    def release(self, row: int) -> None:
        """Forget a row in a terminal state; its number may be given to the next request at once."""
        state = self.state[row]
        assert state != _FREE, f"row {row} is not in use"
        assert _TERMINAL >> state & 1, f"row {row} is {RequestState(state).name}, which is no end"
        self._counts[self.service[row] * _STATES + state] -= 1
        self.cached_rows -= self.cached_tokens[row] > 0
        self.flows.drop(self.flow[row])
        self.tenants.drop(self.tenant[row])
        self.state[row] = _FREE
        self._free.append(row)
        self._rows -= 1

    def move(self, row: int, state: RequestState) -> None:
        """The one place where a request's state changes. The move must be in `TRANSITIONS`."""
        before = self.state[row]
        assert before != _FREE, f"row {row} is not in use"
        assert _LEGAL[before] >> state & 1, f"row {row}: {RequestState(before).name} → {state.name} is no move"
        self.state[row] = state
        base = self.service[row] * _STATES
        self._counts[base + before] -= 1
        self._counts[base + state] += 1

    def demote(self, row: int, service: PriorityClass) -> None:
        """Lower the service class. The row must not be queued in a discipline: it would look in the wrong class."""
        before = self.service[row]
        assert self.state[row] != _FREE, f"row {row} is not in use"
        assert service > before, f"row {row}: from {before} to {service} is no demotion"
        state = self.state[row]
        self.service[row] = service
        self._counts[before * _STATES + state] -= 1
        self._counts[service * _STATES + state] += 1

    def set_tokens(
        self, row: int, *, prompt_tokens: int, output_tokens: int | None = None, cached_tokens: int = 0
    ) -> None:
        """What staging found out: the exact prompt, a better output prediction, the cached prefix.

        A row may be queued: disciplines read its cost when they dispatch it.
        """
        assert self.state[row] != _FREE, f"row {row} is not in use"
        assert 0 <= cached_tokens <= prompt_tokens <= _MAX_TOKENS, f"{prompt_tokens=}, {cached_tokens=}"
        self.prompt_tokens[row] = prompt_tokens
        self.cached_rows += (cached_tokens > 0) - (self.cached_tokens[row] > 0)
        self.cached_tokens[row] = cached_tokens
        self.prompt_cost[row] = self.cost.prompt(prompt_tokens, cached_tokens)
        if output_tokens is not None:
            assert 0 <= output_tokens <= _MAX_TOKENS, f"{output_tokens=}"
            self.output_tokens[row] = output_tokens
            self.output_cost[row] = self.cost.output(output_tokens)

    # --- reading --------------------------------------------------------------------------------------------------

    def state_of(self, row: int) -> RequestState:
        return RequestState(self.state[row])

    def service_of(self, row: int) -> PriorityClass:
        return PriorityClass(self.service[row])

    def origin_of(self, row: int) -> PriorityClass:
        return PriorityClass(self.origin[row])

    def tenant_name(self, row: int) -> str:
        return self.tenants.name(self.tenant[row])

    def predicted_cost(self, row: int) -> int:
        """Of its uncached prompt and its predicted output."""
        return self.prompt_cost[row] + self.output_cost[row]

    def flow_name(self, row: int) -> str:
        return self.flows.name(self.flow[row]).partition("\0")[2]

    def in_use(self, row: int) -> bool:
        return row < self._used and self.state[row] != _FREE

    def count(self, service: PriorityClass, state: RequestState) -> int:
        """Rows of a service class in a state. O(1)."""
        return self._counts[service * _STATES + state]

    def __len__(self) -> int:
        """Rows in use."""
        return self._rows

    def statistics(self) -> IndexStatistics:
        return IndexStatistics(
            rows=self._rows,
            capacity=self.capacity,
            rows_peak=self._rows_peak,
            added=self._added,
            released=self._added - self._rows,
            by_state={state: sum(self._counts[state::_STATES]) for state in RequestState},
            tenants=len(self.tenants),
            flows=len(self.flows),
            column_bytes=self._allocated * self._bytes_a_row() + len(self._free) * self._free.itemsize,
        )

    def check_integrity(self) -> None:
        """Assert that rows, free list, counts and names agree. Linear in the rows."""
        free = set(self._free)
        assert len(free) == len(self._free), "a row is free twice"
        counts = [0] * (_CLASSES * _STATES)
        tenants: dict[int, int] = {}
        flows: dict[int, int] = {}
        for row in range(self._used):
            if self.state[row] == _FREE:
                assert row in free, f"row {row} is lost: neither in use nor free"
                continue
            assert row not in free, f"row {row} is in use and free"
            assert self.service[row] >= self.origin[row], f"row {row} was raised above its origin class"
            counts[self.service[row] * _STATES + self.state[row]] += 1
            tenants[self.tenant[row]] = tenants.get(self.tenant[row], 0) + 1
            flows[self.flow[row]] = flows.get(self.flow[row], 0) + 1
        assert counts == self._counts, "the counts by class and state are wrong"
        cached = sum(self.cached_tokens[row] > 0 for row in range(self._used) if self.state[row] != _FREE)
        assert cached == self.cached_rows, f"{cached} rows have something cached, counted {self.cached_rows}"
        assert sum(counts) == self._rows == self._used - len(free), "rows don't add up"
        self.tenants.check_integrity()
        self.flows.check_integrity()
        for number, rows in tenants.items():
            assert self.tenants.holders(number) >= rows, f"tenant {number} has rows that don't hold it"
        for number, rows in flows.items():
            assert self.flows.holders(number) >= rows, f"flow {number} has rows that don't hold it"

    # --- memory ---------------------------------------------------------------------------------------------------

    def _take_row(self) -> int:
        if self._free:
            row = self._free.pop()
        else:
            if self._used == self._allocated:
                if self._allocated == self.capacity:
                    raise IndexFull(f"all {self.capacity} rows of the index are in use")
                self._grow(min(grown(self._allocated, self._used), self.capacity))
            row = self._used
            self._used += 1
        self._rows += 1
        self._added += 1
        if self._rows > self._rows_peak:
            self._rows_peak = self._rows
        return row

    def _columns(self) -> "tuple[array[int] | array[float], ...]":
        return (
            self.tenant,
            self.flow,
            self.prompt_tokens,
            self.output_tokens,
            self.cached_tokens,
            self.prompt_cost,
            self.output_cost,
            self.arrival_s,
            self.ttft_deadline_s,
            self.hard_deadline_s,
        )

    def _bytes_a_row(self) -> int:
        return 3 + sum(column.itemsize for column in self._columns())

    def _grow(self, rows: int) -> None:
        more = rows - self._allocated
        for flags in (self.state, self.origin, self.service):
            flags.extend(bytes(more))
        for column in self._columns():
            column.frombytes(bytes(more * column.itemsize))
        self._allocated = rows
