"""Virtual token counter: the client that was served least goes next.

Knows clients (tenants; as a leaf, flows), their weights and their counters. Does not know classes, but for their room,
nor predictions.

Algorithm: a counter a client grows by the prompt's cost when a request is admitted, and by an output token's as each is
generated, ÷ weight; the least goes. A client that comes back is lifted to the least counter of those that have
something queued, or, where nobody has, to that of the client that left last. Counters are the rounds of
`scheduling.rotation`, `_UNIT` cost units of weight 1 each, remainders carried.

Source: Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, and its artifact (`vtc_req_queue.py`); the
weighted form is the paper's section 4.3. Costs are those of `scheduling.cost`, whose defaults are the paper's. Why: the
published standard that any fair order must be measured against.

Advantage: fair by what was really generated, no prediction, bound of 2 × max(prompt cost of one request, cost of the
running batch) between two backlogged clients. Drawback: output is charged when it is too late: a client may fill the
batch before its first token counts; every step tells every client's counter; no classes, so nobody is urgent. Limits:
O(log clients) a decision and a token.
"""

from collections.abc import Callable, Iterator

from scheduling.clients import Client, ClientKind, ClientQueues
from scheduling.index import Index
from scheduling.rotation import Rotation, Turn, interleave
from scheduling.row_list import RowLinks

__all__ = ["Vtc", "VtcClient"]

_UNIT = 8


class VtcClient(Client):
    __slots__ = ("turn",)

    def __init__(self, number: int, weight: float) -> None:
        super().__init__(number)
        self.turn: Turn[VtcClient] = Turn(self, max(1, round(weight * _UNIT)))


class Vtc(ClientQueues[VtcClient]):
    """Implements `scheduling.discipline.Discipline[VtcClient]`.

    As published it counts no prediction, so whoever keeps its books must tell it of each token
    (`AccountedQdisc(overrun_tokens=1)`).
    """

    def __init__(
        self,
        index: Index,
        kind: ClientKind = ClientKind.TENANT,
        links: RowLinks | None = None,
        weight_of: Callable[[int], float] = lambda _: 1.0,
        predicted: bool = False,
    ) -> None:
        """`weight_of(row)`: the weight of the row's client. `predicted`: count the predicted output at dispatch (the
        paper's variant with length prediction), as a leaf must, for those above it do."""
        super().__init__(index, kind, links)
        self._cost_of = index.predicted_cost if predicted else index.prompt_cost.__getitem__
        self._weight_of = weight_of
        self._rotation: Rotation[VtcClient] = Rotation()
        self._left_last: VtcClient | None = None

    def new_client(self, number: int, row: int) -> VtcClient:
        return VtcClient(number, self._weight_of(row))

    def in_order(self, now: float) -> Iterator[VtcClient]:
        front = self._rotation.front()
        if front is not None:
            yield front.owner
            for turn in self._rotation.in_order():
                if turn is not front:
                    yield turn.owner

    def woke(self, client: VtcClient, now: float) -> None:
        front = self._rotation.front()
        if front is None and self._left_last is not None:
            front = self._left_last.turn
        if front is not None:
            self._rotation.lift(front)
        self._rotation.join(client.turn)

    def slept(self, client: VtcClient, now: float) -> None:
        self._rotation.leave(client.turn)
        self._left_last = client

    def served(self, client: VtcClient, row: int, now: float) -> int:
        cost = self._cost_of(row)
        self._rotation.serve_past(client.turn, cost)
        return cost

    def adjusted(self, client: VtcClient, cost: int, now: float) -> None:
        self._rotation.adjust(client.turn, cost)

    def owes(self, client: VtcClient, now: float) -> bool:
        return self._rotation.debt(client.turn) > 0

    def order(self, skip: int) -> Iterator[int]:
        return interleave(self._rotation, lambda client: self.rows_of(client, skip), self._cost_of)

    def close(self) -> None:
        super().close()
        self._left_last = None

    def check_integrity(self) -> None:
        super().check_integrity()
        self._rotation.check_integrity()
        for client in self._clients.values():
            assert client.turn.active is (client.count > 0), f"client {client.number} has {client.count} rows"
