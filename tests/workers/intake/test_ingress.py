"""Ingress: what it reads off a record, which class it gives, and what it refuses."""

from typing import Any

import orjson
import pytest

from scheduling.priority import PriorityClass
from topics.control_orders import Cancel
from topics.record import InboundRecord, RecordId
from workers.configuration.config import IngressConfig
from workers.intake.ingress import Ingress, Refusal
from workers.intake.request import Arrival

P0, P1, P2, P3 = PriorityClass
BODY = {"messages": [{"role": "user", "content": "hi"}]}


class Door:
    """An ingress, what came through it and what did not."""

    def __init__(self, *, trust: bool = True, **config: Any) -> None:
        self.arrivals: list[Arrival] = []
        self.refusals: list[Refusal] = []
        self.ingress = Ingress(
            IngressConfig(**config),
            default_reply_topic="inference.replies",
            trust_tenant_header=trust,
            ttft_slo_s={P0: 0.3},
            accept=lambda arrival, _record: self.arrivals.append(arrival),
            refuse=self.refusals.append,
            monotonic_s=lambda: 100.0,
            wall_s=lambda: 1_000.0,
        )

    def take(
        self, origin: PriorityClass = P1, body: Any = None, timestamp_ms: int = 1_000_000, **headers: str
    ) -> Arrival | Refusal:
        pairs = tuple((name.replace("_", "-"), value.encode()) for name, value in headers.items())
        value = orjson.dumps(BODY if body is None else body)
        self.ingress.take(origin, 7, InboundRecord(RecordId("t", 0, 5), timestamp_ms, b"key", value, pairs))
        return self.arrivals[-1] if self.arrivals else self.refusals[-1]


def accepted(result: Arrival | Refusal) -> Arrival:
    assert isinstance(result, Arrival)
    return result


def refused(result: Arrival | Refusal) -> Refusal:
    assert isinstance(result, Refusal)
    return result


def test_an_arrival_has_what_the_scheduler_needs() -> None:
    arrival = accepted(Door().take(P0, tenant="acme", flow="session-1", body=BODY | {"max_tokens": 9}))
    assert (arrival.origin_class, arrival.service_class, arrival.epoch) == (P0, P0, 7)
    assert (arrival.tenant, arrival.flow, arrival.max_tokens) == ("acme", "session-1", 9)
    assert (arrival.arrived_s, arrival.ttft_deadline_s, arrival.hard_deadline_s) == (100.0, 100.3, None)


def test_embeddings_are_foreseen_without_output() -> None:
    arrival = accepted(Door().take(P2, body={"input": ["a", "b", "c"], "max_tokens": 9}))
    assert (arrival.prompts, arrival.choices, arrival.max_tokens) == (3, 1, 0)


def test_without_a_flow_the_key_is_the_flow() -> None:
    assert accepted(Door().take()).flow == "key"


def test_an_untrusted_tenant_header_is_ignored() -> None:
    assert accepted(Door(trust=False).take(tenant="acme")).tenant == "default"


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({"tier": "p3"}, {}, P3),
        ({}, {"priority": "p2"}, P2),
        ({}, {"priority": 3}, P3),
        ({"tier": "p2"}, {"priority": 1}, P2),
    ],
)
def test_a_request_may_lower_its_class(headers: dict[str, Any], body: dict[str, Any], expected: PriorityClass) -> None:
    arrival = accepted(Door().take(P1, BODY | body, **headers))
    assert (arrival.origin_class, arrival.service_class) == (P1, expected)


@pytest.mark.parametrize(
    ("headers", "body", "param"), [({"tier": "p0"}, {}, "tier"), ({}, {"priority": 0}, "priority")]
)
def test_a_request_may_not_raise_its_class(headers: dict[str, Any], body: dict[str, Any], param: str) -> None:
    refusal = refused(Door().take(P1, BODY | body, **headers))
    assert (refusal.error.status_code, refusal.error.param, refusal.error.code) == (400, param, "priority_raised")
    assert "never raise it" in refusal.error.message


def test_the_deadline_counts_from_the_records_timestamp() -> None:
    arrival = accepted(Door().take(timestamp_ms=999_000, sla_ms="1500"))
    assert arrival.hard_deadline_s == pytest.approx(100.5)


def test_a_deadline_that_has_passed_is_refused() -> None:
    refusal = refused(Door().take(deadline_ms="999999"))
    assert (refusal.error.status_code, refusal.error.code) == (504, "expired")


@pytest.mark.parametrize(
    ("topic", "allowed"), [("team.answers", True), ("jobs.a", True), ("inference.replies", True), ("x", False)]
)
def test_reply_topics_are_on_a_list(topic: str, allowed: bool) -> None:
    door = Door(allowed_reply_topics=("team.answers", "jobs.*"))
    value = orjson.dumps(BODY)
    record = InboundRecord(RecordId("t", 0, 5), 1_000_000, None, value, (("kafka_replyTopic", topic.encode()),))
    door.ingress.take(P1, 7, record)
    assert bool(door.arrivals) == allowed
    if not allowed:
        assert door.refusals[0].error.status_code == 403
        assert door.refusals[0].address.topic is None, "the refusal goes to the default topic"


def test_refusals_are_counted_by_code() -> None:
    door = Door()
    door.take(deadline_ms="1")
    door.take(deadline_ms="2")
    door.take(body=[])
    statistics = door.ingress.statistics()
    assert statistics.accepted == 0
    assert statistics.refused == {"expired": 2, "400": 1}


@pytest.mark.parametrize(
    ("tenant", "trust", "allowed"),
    [(b"acme", True, True), (b"globex", True, False), (b"acme", False, False)],
    ids=["its own", "another's", "whoever says so"],
)
def test_a_tenants_own_reply_topics_are_its_alone(tenant: bytes, trust: bool, allowed: bool) -> None:
    door = Door(trust=trust, tenant_reply_topics={"acme": "acme.*"})
    headers = (("tenant", tenant), ("kafka_replyTopic", b"acme.answers"), ("request-id", b"r"))
    door.ingress.take(P1, 7, InboundRecord(RecordId("t", 0, 5), 1_000_000, None, orjson.dumps(BODY), headers))
    assert len(door.arrivals) == allowed
    if not allowed:
        (refusal,) = door.refusals
        assert refusal.error.code == "reply_topic_not_allowed"
        assert refusal.address.topic is None, "the refusal must not go there either"


def test_what_an_order_cancels_is_answered_even_if_nobody_could_know_it() -> None:
    """As a dead letter it might be sent again."""
    door = Door()
    door.ingress._cancelling = lambda *_request: Cancel("tenant", "default", 10**15)
    refusal = refused(door.take())
    assert refusal.error.code == "cancelled"
    assert refusal.answerable


@pytest.mark.parametrize(
    ("limit", "headers", "deadline_s"),
    [
        ({"p1": 5}, {}, 105.0),
        ({"p1": 5}, {"sla_ms": "2000"}, 102.0),
        ({"p1": 1}, {"sla_ms": "2000"}, 101.0),
        ({}, {}, None),
    ],
    ids=["the class's limit", "its own is earlier", "the class's is earlier", "none"],
)
def test_the_age_at_which_a_request_expires_in_the_queue(
    limit: dict[str, float], headers: dict[str, Any], deadline_s: float | None
) -> None:
    assert accepted(Door(max_queue_s=limit).take(P1, **headers)).hard_deadline_s == deadline_s


def test_what_is_too_old_when_it_is_read_is_answered_at_once() -> None:
    assert refused(Door(max_queue_s={"p1": 5}).take(timestamp_ms=990_000)).error.code == "expired"
