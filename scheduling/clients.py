"""A queue a client, in order of arrival: what every policy shares that chooses among senders and not among classes.

Knows clients and their rows. A client is a tenant, or within a tenant a flow: the policy is told which. Does not know
which client goes next: a policy says so, and is told what each one's requests came to cost.

A client is forgotten when it has nothing queued or in flight and the policy has nothing to remember of it, or when
more than `_MAX_RESTING` are idle.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator
from enum import Enum
from itertools import chain
from typing import Generic, TypeVar

from scheduling.flat import Flat
from scheduling.index import Index
from scheduling.row_list import NO_ROW, RowLinks

__all__ = ["Client", "ClientKind", "ClientQueues"]

_MAX_RESTING = 10_000


class ClientKind(Enum):
    TENANT = "tenant"
    FLOW = "flow"


class Client:
    """One client's queue; it is the grant of its requests."""

    __slots__ = ("count", "head", "in_flight", "number", "tail")

    def __init__(self, number: int) -> None:
        self.number = number
        """In the index; held for as long as this lives."""
        self.head = NO_ROW
        self.tail = NO_ROW
        self.count = 0
        self.in_flight = 0


C = TypeVar("C", bound=Client)


class ClientQueues(Flat, ABC, Generic[C]):
    """Implements `scheduling.discipline.Discipline[C]`."""

    def __init__(self, index: Index, kind: ClientKind, links: RowLinks | None = None) -> None:
        """`links`: shared with other queues whose rows are not in this one."""
        self._index = index
        self._service = index.service
        self._number_of, self._names = (
            (index.tenant, index.tenants) if kind is ClientKind.TENANT else (index.flow, index.flows)
        )
        self._links = links or RowLinks()
        self._clients: dict[int, C] = {}
        self._resting: OrderedDict[C, None] = OrderedDict()
        """Clients with nothing queued or in flight, longest first."""

    # --- the policy's part ----------------------------------------------------------------------------------------

    @abstractmethod
    def new_client(self, number: int, row: int) -> C:
        """A client whose first request is `row`."""

    @abstractmethod
    def in_order(self, now: float) -> Iterator[C]:
        """Clients that have something queued, first the one that goes next; lazily. Must change nothing."""

    @abstractmethod
    def woke(self, client: C, now: float) -> None:
        """It has its first row."""

    @abstractmethod
    def slept(self, client: C, now: float) -> None:
        """Its last row left the queue."""

    @abstractmethod
    def served(self, client: C, row: int, now: float) -> int:
        """It was chosen: count its row, and return the cost that was counted. Its queue may be empty now."""

    @abstractmethod
    def adjusted(self, client: C, cost: int, now: float) -> None:
        """What it was served cost so much more, or (negative) less."""

    @abstractmethod
    def owes(self, client: C, now: float) -> bool:
        """Whether forgetting the idle client would make a difference."""

    @abstractmethod
    def order(self, skip: int) -> Iterator[int]: ...

    # --- a row's way ----------------------------------------------------------------------------------------------

    def push(self, row: int, now: float) -> None:
        number = self._number_of[row]
        client = self._clients.get(number)
        if client is None:
            client = self._clients[number] = self.new_client(number, row)
            self._names.hold(number)
        self._links.append(client, row)
        if client.count == 1:
            self._wake(client, now)

    def pick(self, now: float, blocked: int) -> int | None:
        client = self._next(now, blocked)
        return None if client is None else client.head

    def pop(self, now: float, blocked: int) -> tuple[int, int, C] | None:
        client = self._next(now, blocked)
        if client is None:
            return None
        row = client.head
        self._links.pop(client)
        client.in_flight += 1
        cost = self.served(client, row, now)
        if not client.count:
            self.slept(client, now)
        return row, cost, client

    def take(self, row: int, cost: int, now: float) -> C:
        client = self._clients[self._number_of[row]]
        self._links.remove(client, row)
        client.in_flight += 1
        self.adjusted(client, cost, now)
        if not client.count:
            self.slept(client, now)
        return client

    def correct(self, grant: C, cost: int, now: float) -> None:
        self.adjusted(grant, cost, now)

    def end(self, grant: C, cost: int, now: float) -> None:
        if cost:
            self.adjusted(grant, cost, now)
        grant.in_flight -= 1
        self._rest(grant, now)

    def restore(self, row: int, grant: C, cost: int, now: float) -> None:
        self.adjusted(grant, -cost, now)
        grant.in_flight -= 1
        self._links.restore(grant, row)
        if grant.count == 1:
            self._wake(grant, now)

    def remove(self, row: int, now: float) -> None:
        client = self._clients[self._number_of[row]]
        self._links.remove(client, row)
        if not client.count:
            self.slept(client, now)
            self._rest(client, now)

    def _next(self, now: float, blocked: int) -> C | None:
        """Its oldest request must have room: a client's requests keep their order."""
        for client in self.in_order(now):
            if not blocked >> self._service[client.head] & 1:
                return client
        return None

    # --- looking --------------------------------------------------------------------------------------------------

    def rows_of(self, client: C, skip: int = 0) -> Iterator[int]:
        """In order, without those of the classes in `skip`."""
        service = self._service
        return (row for row in self._links.rows(client) if not skip >> service[row] & 1)

    def rows(self) -> Iterator[int]:
        return chain.from_iterable(self._links.rows(client) for client in self._clients.values())

    def close(self) -> None:
        for client in list(self._clients.values()):
            assert not client.count + client.in_flight, f"client {client.number} has rows"
            self._forget(client)

    def check_integrity(self) -> None:
        for number, client in self._clients.items():
            assert client.number == number
            self._links.check_integrity(client)
            for row in self._links.rows(client):
                assert self._number_of[row] == number, f"row {row} is in the queue of client {number}"
            idle = not client.count and not client.in_flight
            assert idle is (client in self._resting), f"client {number}: {client.count=}, {client.in_flight=}"

    def __len__(self) -> int:
        """Linear in the clients: who holds a discipline counts its rows anyway."""
        return sum(client.count for client in self._clients.values())

    # --- clients --------------------------------------------------------------------------------------------------

    def _wake(self, client: C, now: float) -> None:
        self._resting.pop(client, None)
        self.woke(client, now)

    def _rest(self, client: C, now: float) -> None:
        """If it is idle now. Forgets two for whom that makes no difference, so that their number stays bounded."""
        if client.count or client.in_flight:
            return
        resting = self._resting
        resting[client] = None
        for _ in range(min(2, len(resting))):
            oldest, _ = resting.popitem(last=False)
            if len(resting) < _MAX_RESTING and self.owes(oldest, now):
                resting[oldest] = None
            else:
                self._forget(oldest)

    def _forget(self, client: C) -> None:
        self._resting.pop(client, None)
        del self._clients[client.number]
        self._names.drop(client.number)
