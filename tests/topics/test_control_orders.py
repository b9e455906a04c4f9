"""The orders in force: the last one for each thing counts, they expire, tombstones end them, and they are bounded."""

import pytest

from topics.control_orders import OF_OFFSET, Cancel, ControlOrders
from topics.control_records import (
    CancelOrder,
    ControlRecord,
    PauseOrder,
    RequeueOrder,
    WorkerState,
    cancel_order,
    control_key,
    decode_control_record,
)
from topics.headers import RequestHeaders
from topics.record import InboundRecord, RecordId
from topics.requeue import moved_record

NOW_MS = 1_000_000


class Topic:
    """Records as the control topic would hold them, taken one by one."""

    def __init__(self, **options: int) -> None:
        self.orders = ControlOrders(**options)
        self.offset = -1

    def write(self, record: ControlRecord, at_ms: int = NOW_MS) -> object:
        return self.raw(control_key(record), record.model_dump_json().encode(), at_ms)

    def raw(
        self, key: str, value: bytes | None, at_ms: int = NOW_MS, headers: tuple[tuple[str, bytes], ...] = ()
    ) -> object:
        self.offset += 1
        record = InboundRecord(RecordId("inference.control", 0, self.offset), at_ms, key.encode(), value, headers)
        return self.orders.take(record, NOW_MS)


def cancel(name: str = "r", *, expires_at_ms: int = NOW_MS + 60_000, scope: str = "request") -> CancelOrder:
    return CancelOrder.model_validate({"scope": scope, "name": name, "expires_at_ms": expires_at_ms})


def test_a_cancel_stops_what_was_sent_before_it() -> None:
    topic = Topic()
    assert topic.write(cancel(), at_ms=500) == Cancel("request", "r", 500)
    assert topic.orders.cancelling("r", None, "t", 500) is not None
    assert topic.orders.cancelling("r", None, "t", 501) is None
    assert topic.orders.cancelling("other", None, "t", 500) is None


@pytest.mark.parametrize(("scope", "request_"), [("job", ("r", "x", "t")), ("tenant", ("r", "j", "x"))])
def test_a_job_and_a_tenant_are_told_from_a_request_of_that_name(scope: str, request_: tuple[str, str, str]) -> None:
    topic = Topic()
    topic.write(cancel("x", scope=scope))
    assert topic.orders.cancelling(*request_, NOW_MS) is not None
    assert topic.orders.cancelling("x", None, "t", NOW_MS) is None


def test_a_later_cancel_covers_what_came_between() -> None:
    topic = Topic()
    topic.write(cancel(), at_ms=500)
    topic.write(cancel(), at_ms=900)
    assert topic.orders.cancelling("r", None, "t", 800) is not None


def test_a_cancel_whose_time_was_over_when_it_is_read_changes_nothing() -> None:
    topic = Topic()
    assert topic.write(cancel(expires_at_ms=NOW_MS)) is None
    assert topic.orders.cancelling("r", None, "t", 0) is None


def test_expired_cancels_are_named_once_with_their_place() -> None:
    topic = Topic()
    topic.write(cancel("a"))
    topic.write(cancel("b", expires_at_ms=NOW_MS + 99_000))
    assert list(topic.orders.expired(NOW_MS + 60_000)) == [("cancel/request/a", 0)]
    assert list(topic.orders.expired(NOW_MS + 60_000)) == []
    assert topic.orders.statistics().cancels == 1


def test_a_tombstone_ends_the_order_that_it_names_and_no_later_one() -> None:
    topic = Topic()
    topic.write(cancel())
    topic.write(cancel())
    topic.raw("cancel/request/r", None, headers=((OF_OFFSET, b"0"),))
    assert topic.orders.cancelling("r", None, "t", 0) is not None
    topic.raw("cancel/request/r", None, headers=((OF_OFFSET, b"1"),))
    assert topic.orders.cancelling("r", None, "t", 0) is None


def test_past_the_bound_the_oldest_cancel_is_given_up_and_counted() -> None:
    topic = Topic(max_cancels=2)
    for name in "abc":
        topic.write(cancel(name))
    assert topic.orders.cancelling("a", None, "t", 0) is None
    assert topic.orders.cancelling("c", None, "t", 0) is not None
    assert topic.orders.statistics().given_up == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cancel/request/r", b"not json"),
        ("cancel/request/r", b'{"scope":"request","name":"other","expires_at_ms":1}'),
        ("cancel/request/r", b'{"version":2,"scope":"request","name":"r","expires_at_ms":1}'),
        ("worker/w", b"{}"),
    ],
    ids=["no JSON", "another key", "a version of the future", "fields missing"],
)
def test_a_record_that_cannot_be_read_is_counted_and_changes_nothing(key: str, value: bytes) -> None:
    topic = Topic()
    with pytest.raises(ValueError, match="control record"):
        topic.raw(key, value)
    assert topic.orders.statistics().unreadable == 1
    assert topic.orders.statistics().cancels == 0


def test_kinds_of_later_releases_are_passed_over() -> None:
    assert Topic().raw("warp/9", b"{}") is None


def test_what_workers_say_of_themselves_is_no_order() -> None:
    topic = Topic()
    topic.write(cancel())
    state = WorkerState(worker="w", classes=("p0",), state="serving", applied_offset=0, at_ms=NOW_MS)
    topic.write(state)
    assert topic.orders.workers == {"w": state}
    assert topic.orders.last_offset == 0
    topic.raw("worker/w", None)
    assert topic.orders.workers == {}


def test_records_survive_their_encoding() -> None:
    order = cancel_order(job="j", keep_s=5)
    assert decode_control_record(control_key(order), order.model_dump_json().encode()) == order


@pytest.mark.parametrize("names", [{}, {"job": "a", "tenant": "b"}, {"job": ""}, {"job": "x" * 257}])
def test_an_order_names_exactly_one_thing(names: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"cancel exactly one|characters"):
        cancel_order(**names)  # type: ignore[arg-type]


def test_the_last_order_for_a_request_counts_whatever_it_orders() -> None:
    topic = Topic()
    topic.write(RequeueOrder(request="r", to="p0", expires_at_ms=NOW_MS + 60_000))
    moved = topic.orders.cancelling("r", None, "t", 0)
    assert moved is not None
    assert moved.move_to == "p0"
    topic.write(cancel())
    assert topic.orders.cancelling("r", None, "t", 0) == Cancel("request", "r", NOW_MS)
    topic.raw("requeue/r", None)
    assert topic.orders.cancelling("r", None, "t", 0) is not None, "another order's end"
    topic.raw("cancel/request/r", None)
    assert topic.orders.cancelling("r", None, "t", 0) is None


def test_the_record_that_is_sent_anew_keeps_identity_and_deadline() -> None:
    headers = (("tier", b"p1"), ("sla-ms", b"500"), ("kafka_correlationId", b"\x00\x01"), ("mine", b"x"))
    record = InboundRecord(RecordId("inference.p1", 3, 7), 1_000, b"key", b"{}", headers)
    moved = moved_record(record, RequestHeaders.decode(record), "inference.p0")
    assert (moved.topic, moved.key, moved.value) == ("inference.p0", b"key", b"{}")
    assert dict(moved.headers) == {
        "kafka_correlationId": b"\x00\x01",
        "mine": b"x",
        "request-id": b"inference.p1-3-7",
        "requeued": b"inference.p1",
        "requeued-sent-ms": b"1000",
        "deadline-ms": b"1500",
    }


def test_a_cancel_means_a_request_that_is_under_way_into_another_class() -> None:
    """It was sent before the order, and the record of the other class stands behind it."""
    topic = Topic()
    sent = InboundRecord(RecordId("inference.p1", 0, 0), NOW_MS - 5, None, b"{}", (("request-id", b"r"),))
    moved = moved_record(sent, RequestHeaders.decode(sent), "inference.p0")
    topic.write(cancel())
    arrived = InboundRecord(RecordId("inference.p0", 0, 0), NOW_MS + 5, None, b"{}", moved.headers)
    sent_ms = RequestHeaders.decode(arrived).sent_ms(arrived.timestamp_ms)
    assert topic.orders.cancelling("r", None, "t", sent_ms) == Cancel("request", "r", NOW_MS)
    again = moved_record(arrived, RequestHeaders.decode(arrived), "inference.p2")
    assert dict(again.headers)["requeued-sent-ms"] == str(NOW_MS - 5).encode()


def test_nobody_sends_later_than_the_broker_takes_it() -> None:
    assert RequestHeaders("r", requeued_sent_ms=10**15).sent_ms(NOW_MS) == NOW_MS


def test_of_a_topic_that_was_made_anew_nothing_stands() -> None:
    topic = Topic()
    topic.write(cancel())
    topic.write(PauseOrder(scope="tenant", name="t"))
    topic.orders.forget_all()
    assert (topic.orders.standing, topic.orders.last_offset) == ({}, -1)
    assert topic.orders.cancelling("r", None, "t", 0) is None
    topic.write(cancel())
    assert topic.orders.cancelling("r", None, "t", 0) is not None
