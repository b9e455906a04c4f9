"""How many terminal replies one transaction takes, so that it ends within its time-out.

Knows how long transactions of which size took. Does not know Kafka, replies or clocks. Pure.

There is no bound until a transaction fails that took half of its time-out or more: whatever the error says, it may
have been too large for the time (a slow broker, a slow disk, a starved process), and the same again would fail for
ever. Then the next takes half as many, down to one. After one that ended well within its time the bound grows by a
quarter. So a bound that an outage has left behind is gone after some thirty transactions, a second; and as one that
took half of its time grows no further, a broker that stays slow fails none.
"""

__all__ = ["TransactionSize"]

_LONG = 0.5
"""Of the time-out."""
_GROWTH = 4
"""By this part (1 ÷ it)."""


class TransactionSize:
    def __init__(self, timeout_s: float) -> None:
        self._long_s = _LONG * timeout_s
        self._most: int | None = None

    @property
    def most(self) -> int | None:
        """Replies. None: as many as there are."""
        return self._most

    def failed(self, replies: int, took_s: float) -> None:
        if took_s >= self._long_s:
            self._most = max(1, replies // 2)

    def ended(self, replies: int, took_s: float) -> None:
        if self._most is not None and replies >= self._most and took_s < self._long_s:
            self._most += max(1, self._most // _GROWTH)
