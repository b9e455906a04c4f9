"""Multi-level feedback queue: who has used little goes before who has used much.

Knows clients (tenants; as a leaf, flows) and what each used since the last boost. Does not know classes, but for their
room, nor weights.

Algorithm: four levels. A client starts in the first; when what it has used exceeds its level's allotment it falls to
the next. The highest level with something queued goes first; in a level clients take turns, one request each. Every
`_BOOST_S` all start afresh. Use is the predicted cost at dispatch, corrected at the end.

Source: Corbató, Merwin-Daggett, Daley, "An Experimental Time-Sharing System", 1962; in the form of Arpaci-Dusseau,
"Operating Systems: Three Easy Pieces", chapter 8 (allotments instead of time slices, so that nobody games it by
yielding). FastServe (Wu et al., 2023) applies it to single requests by preempting them; here a request runs to its end
once it is admitted, so the unit is the client. Why: interactive users go before heavy ones without anybody configured.

Advantage: no weights, no predictions of who is interactive, light users are served at once. Drawback: heavy clients
share what is left, and by requests, not by cost; a boost is felt by everybody; shares mean nothing. Limits: the boost
bounds every client's wait to `_BOOST_S` + the light ones' work.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import chain
from typing import Final

from scheduling.clients import Client, ClientKind, ClientQueues
from scheduling.index import Index
from scheduling.row_list import RowLinks

__all__ = ["Mlfq", "MlfqClient"]

_ALLOTMENTS: Final = (2_048, 8_192, 32_768)
"""Cost units a client may use in the first, second and third level: some, some ten and some hundred chat answers."""
_BOOST_S: Final = 30.0


class MlfqClient(Client):
    __slots__ = ("level", "used")

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.used = 0
        """Cost since the last boost."""
        self.level = 0


class Mlfq(ClientQueues[MlfqClient]):
    """Implements `scheduling.discipline.Discipline[MlfqClient]`."""

    def __init__(
        self, index: Index, kind: ClientKind = ClientKind.TENANT, links: RowLinks | None = None, now: float = 0.0
    ) -> None:
        super().__init__(index, kind, links)
        self._levels: list[OrderedDict[MlfqClient, None]] = [OrderedDict() for _ in range(len(_ALLOTMENTS) + 1)]
        """By level, clients that have something queued in the order of their turns."""
        self._boost_at = now + _BOOST_S

    def new_client(self, number: int, row: int) -> MlfqClient:
        return MlfqClient(number)

    def in_order(self, now: float) -> Iterator[MlfqClient]:
        self._boost(now)
        return chain.from_iterable(self._levels)

    def woke(self, client: MlfqClient, now: float) -> None:
        self._boost(now)
        self._levels[client.level][client] = None

    def slept(self, client: MlfqClient, now: float) -> None:
        self._boost(now)
        del self._levels[client.level][client]

    def served(self, client: MlfqClient, row: int, now: float) -> int:
        cost = self._index.predicted_cost(row)
        self._levels[client.level].move_to_end(client)
        self._use(client, cost)
        return cost

    def adjusted(self, client: MlfqClient, cost: int, now: float) -> None:
        self._boost(now)
        self._use(client, cost)

    def owes(self, client: MlfqClient, now: float) -> bool:
        return client.used > 0

    def order(self, skip: int) -> Iterator[int]:
        for level in self._levels:
            turns = deque(self.rows_of(client, skip) for client in level)
            while turns:
                rows = turns.popleft()
                row = next(rows, None)
                if row is not None:
                    yield row
                    turns.append(rows)

    def check_integrity(self) -> None:
        super().check_integrity()
        queued = {client for client in self._clients.values() if client.count}
        assert queued == set(chain.from_iterable(self._levels)), "levels and queues differ"
        for number, level in enumerate(self._levels):
            assert all(client.level == number for client in level), f"a client of level {number} thinks otherwise"

    def _use(self, client: MlfqClient, cost: int) -> None:
        """What it used moves it down; a refund does not move it up again before the boost."""
        client.used = max(0, client.used + cost)
        level = client.level
        while level < len(_ALLOTMENTS) and client.used > _ALLOTMENTS[level]:
            level += 1
        if level != client.level:
            if client in self._levels[client.level]:
                del self._levels[client.level][client]
                self._levels[level][client] = None
            client.level = level

    def _boost(self, now: float) -> None:
        """Time for all to start afresh? In every call, or the moment would depend on who looks."""
        if now < self._boost_at:
            return
        self._boost_at += _BOOST_S * ((now - self._boost_at) // _BOOST_S + 1)
        for client in self._clients.values():
            client.used = 0
            client.level = 0
        top = self._levels[0]
        for level in self._levels[1:]:
            top.update(level)
            level.clear()
