"""The orders that are in force: what the control topic has said, and has not taken back or let expire.

Knows records by key, the last of each. Does not know how they come (`topics.control_log`) or what obeying means
(`workers.orders.control`). Pure: time is an argument, in milliseconds since 1970.

Bounded: cancels expire, and at most `max_cancels` are remembered; past that the oldest are given up, which is counted,
and what they meant to stop runs. Of pauses and quotas at most `max_standing` are taken; further ones are refused, as if
they could not be read.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from topics.control_records import (
    CancelOrder,
    CancelScope,
    DrainOrder,
    PauseOrder,
    PolicyOrder,
    QuotaOrder,
    RequeueOrder,
    WorkerState,
    control_key,
    decode_control_record,
)
from topics.record import InboundRecord

__all__ = ["OF_OFFSET", "Cancel", "ControlOrders", "ControlStatistics", "Ended", "StandingOrder"]

StandingOrder = PauseOrder | QuotaOrder | PolicyOrder
"""In force until it is taken back."""

OF_OFFSET = "of-offset"
"""Header of a tombstone: the offset of the order that it ends, so that it never ends a later one."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """A cancel, and the moment that it stands for."""

    scope: CancelScope
    name: str
    before_ms: int
    """When the broker took it: requests that it took later are not meant."""
    move_to: str | None = None
    """The class whose topic the request is sent to anew, if it waits. None: it ends, with an answer that says so."""

    @property
    def reason(self) -> str:
        """Ends `RequestError.cancelled`'s sentence. Nobody is told another's names."""
        return "by its caller" if self.scope == "request" else f"with all of its {self.scope}"


@dataclass(frozen=True, slots=True)
class Ended:
    """What the record with this key ordered is taken back."""

    key: str


@dataclass(frozen=True, slots=True)
class ControlStatistics:
    cancels: int
    """In force."""
    given_up: int
    """Cancels that were forgotten before their time, for there were too many."""
    unreadable: int


@dataclass(frozen=True, slots=True)
class _InForce:
    key: str
    cancel: Cancel
    expires_at_ms: int
    offset: int


class ControlOrders:
    """`take` every record of the topic in order; ask `cancelling` of each request that comes."""

    def __init__(self, *, max_cancels: int = 100_000, max_standing: int = 10_000) -> None:
        self._max_cancels = max_cancels
        self._max_standing = max_standing
        self.standing: dict[str, StandingOrder] = {}
        """By key. To be read."""
        self._cancels: OrderedDict[tuple[str, str], _InForce] = OrderedDict()
        """Oldest first."""
        self._scopes: dict[str, int] = {"request": 0, "job": 0, "tenant": 0}
        """How many of each: a scope without any costs a request nothing."""
        self.workers: dict[str, WorkerState] = {}
        """What each worker said last."""
        self.last_offset = -1
        """Of the last order, or end of one, that was read: not of what workers say of themselves."""
        self._given_up = self._unreadable = 0

    def forget_all(self) -> None:
        """The topic is another one: nothing that it said is in force."""
        self.standing.clear()
        self._cancels.clear()
        self._scopes = dict.fromkeys(self._scopes, 0)
        self.workers.clear()
        self.last_offset = -1

    def take(
        self, record: InboundRecord, now_ms: int
    ) -> Cancel | StandingOrder | DrainOrder | Ended | WorkerState | None:
        """What the record changes; None for nothing. Raises `ValueError` for one that can't be read."""
        key = (record.key or b"").decode(errors="replace")
        if not key.startswith("worker/"):
            self.last_offset = record.id.offset
        if record.value is None:
            return self._end(key, dict(record.headers))
        try:
            read = decode_control_record(key, record.value)
        except ValueError:
            self._unreadable += 1
            raise
        match read:
            case CancelOrder():
                cancel = Cancel(read.scope, read.name, record.timestamp_ms)
                return self._remember(key, cancel, read.expires_at_ms, record.id.offset, now_ms)
            case RequeueOrder(request=request, to=label):
                moved = Cancel("request", request, record.timestamp_ms, label)
                return self._remember(key, moved, read.expires_at_ms, record.id.offset, now_ms)
            case WorkerState():
                self.workers[read.worker] = read
            case PauseOrder() | QuotaOrder() | PolicyOrder():
                self._stand(read)
            case _:
                pass
        return read

    def cancelling(self, request_id: str, job_id: str | None, tenant: str, sent_ms: int) -> Cancel | None:
        """The order that stops a request sent then (`RequestHeaders.sent_ms`). Some tenths of a microsecond."""
        if not self._cancels:
            return None
        names = (
            ("request", request_id),
            ("job", job_id),
            ("tenant", tenant),
        )
        for scope, name in names:
            if name is None or not self._scopes[scope]:
                continue
            found = self._cancels.get((scope, name))
            if found is not None and sent_ms <= found.cancel.before_ms:
                return found.cancel
        return None

    def expired(self, now_ms: int) -> Iterator[tuple[str, int]]:
        """Forget cancels whose time is over: key and offset of each, so that the topic can forget them too."""
        over = [place for place, held in self._cancels.items() if held.expires_at_ms <= now_ms]
        for scope, name in over:
            held = self._forget(scope, name)
            yield held.key, held.offset

    def statistics(self) -> ControlStatistics:
        return ControlStatistics(len(self._cancels), self._given_up, self._unreadable)

    def _remember(self, key: str, cancel: Cancel, expires_at_ms: int, offset: int, now_ms: int) -> Cancel | None:
        """The last order for a request, a job or a tenant is the one that counts, whatever it orders."""
        if expires_at_ms <= now_ms:
            return None
        place = (cancel.scope, cancel.name)
        if place in self._cancels:
            self._forget(*place)
        elif len(self._cancels) >= self._max_cancels:
            self._forget(*next(iter(self._cancels)))
            self._given_up += 1
        self._cancels[place] = _InForce(key, cancel, expires_at_ms, offset)
        self._scopes[cancel.scope] += 1
        return cancel

    def _stand(self, order: StandingOrder) -> None:
        key = control_key(order)
        if key not in self.standing and len(self.standing) >= self._max_standing:
            self._unreadable += 1
            raise ValueError(f"{self._max_standing} pauses and quotas are in force: {key!r} is one too many")
        self.standing[key] = order

    def _end(self, key: str, headers: dict[str, bytes]) -> Ended | None:
        kind, _, rest = key.partition("/")
        if kind == "worker":
            return None if self.workers.pop(rest, None) is None else Ended(key)
        if self.standing.pop(key, None) is not None:
            return Ended(key)
        place = ("request", rest) if kind == "requeue" else tuple(rest.split("/", 1))
        held = self._cancels.get(place) if kind in ("cancel", "requeue") and len(place) == 2 else None
        if held is None or held.key != key or held.offset > _ended_offset(headers, held.offset):
            return None
        self._forget(held.cancel.scope, held.cancel.name)
        return Ended(key)

    def _forget(self, scope: str, name: str) -> _InForce:
        self._scopes[scope] -= 1
        return self._cancels.pop((scope, name))


def _ended_offset(headers: dict[str, bytes], default: int) -> int:
    value = headers.get(OF_OFFSET, b"")
    return int(value) if value.isdigit() and len(value) < 20 else default
