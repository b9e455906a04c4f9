"""Ingress: a record from Kafka becomes an arrival for the engine, or a refusal.

Knows the checks that need no tokeniser: headers, size, JSON, shape, reply topic, class, deadline. The rest of the body
is checked at staging (`workers.intake.prompt`). Does not know offsets, the scheduler or the model. Runs on the event
loop, some tens of microseconds a record.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scheduling.classify import ClassRaisedError, service_class
from scheduling.priority import PriorityClass
from topics.codec import loads_object
from topics.control_orders import Cancel
from topics.embeddings import EmbeddingRequest
from topics.errors import RequestError
from topics.headers import REPLY_TOPIC, REQUEUED, TIER, ReplyAddress, RequestHeaders
from topics.record import InboundRecord
from topics.validation import asked_sequences, request_kind
from workers.configuration.config import IngressConfig
from workers.intake.payloads import Sender, record_size
from workers.intake.request import Arrival

__all__ = ["Ingress", "IngressStatistics", "Refusal"]

_LARGE_BODY_BYTES = 64 * 1024
"""Parsed in at most some milliseconds, however it is nested."""
_ANONYMOUS = "default"
"""Tenant of a request without a (trusted) tenant header."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A record that can't become a request. `address` is where its error reply goes."""

    record: InboundRecord
    epoch: int
    origin_class: PriorityClass
    address: ReplyAddress
    error: RequestError

    @property
    def answerable(self) -> bool:
        """False: nobody could know the reply for theirs; the record goes to the dead letters, with its bytes.

        What was cancelled is answered all the same: as a dead letter it might be sent again."""
        return self.address.identified or self.error.code == "cancelled"

    @property
    def held_bytes(self) -> int:
        """What it keeps in memory until it is delivered: a dead letter has the record's bytes."""
        return 0 if self.answerable else record_size(self.record)


@dataclass(frozen=True, slots=True)
class IngressStatistics:
    accepted: int
    refused: dict[str, int]
    """By error code, or status code where there is none."""


def _never(_request_id: str, _job_id: str | None, _tenant: str, _sent_ms: int) -> None:
    """No order is in force."""


class Ingress:
    def __init__(
        self,
        config: IngressConfig,
        *,
        default_reply_topic: str,
        trust_tenant_header: bool,
        ttft_slo_s: Mapping[PriorityClass, float | None],
        accept: Callable[[Arrival, InboundRecord], None],
        refuse: Callable[[Refusal], None],
        cancelling: Callable[[str, str | None, str, int], Cancel | None] = _never,
        monotonic_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """`cancelling`: the order that ends a request of this id, job, tenant and time stamp (ms), if there is one."""
        self._config = config
        self._cancelling = cancelling
        self._default_reply_topic = default_reply_topic
        self._trust_tenant_header = trust_tenant_header
        self._ttft_slo_s = ttft_slo_s
        self._max_queue_s = {priority: config.max_queue_s.get(priority.label) for priority in PriorityClass}
        self._accept = accept
        self._refuse = refuse
        self._monotonic_s = monotonic_s
        self._wall_s = wall_s
        self._accepted = 0
        self._refused: dict[str, int] = {}

    def take(self, origin: PriorityClass, epoch: int, record: InboundRecord) -> None:
        """Hand the record on to `accept` or to `refuse`, exactly one of them, exactly once."""
        try:
            arrival = self._arrival(origin, epoch, record)
        except RequestError as error:
            self._refuse_record(origin, epoch, record, error)
        else:
            self._accepted += 1
            self._accept(arrival, record)

    def _refuse_record(self, origin: PriorityClass, epoch: int, record: InboundRecord, error: RequestError) -> None:
        code = error.code or str(error.status_code)
        self._refused[code] = self._refused.get(code, 0) + 1
        self._refuse(Refusal(record, epoch, origin, self._salvaged_address(record), error))

    def sender_of(self, record: InboundRecord) -> Sender:
        """Of a record that was read again: what its arrival said. Never raises: the log may have another one there."""
        try:
            headers = RequestHeaders.decode(record)
        except RequestError:
            return Sender(_ANONYMOUS, "")
        return self._sender(headers, record)

    def _sender(self, headers: RequestHeaders, record: InboundRecord) -> Sender:
        tenant = headers.tenant if self._trust_tenant_header and headers.tenant else _ANONYMOUS
        return Sender(tenant, headers.flow_of(record.key) or "")

    def statistics(self) -> IngressStatistics:
        return IngressStatistics(self._accepted, dict(self._refused))

    def _arrival(self, origin: PriorityClass, epoch: int, record: InboundRecord) -> Arrival:
        if record.value is None:
            raise RequestError.invalid_request(
                "body", "the record has no value (a tombstone): send a JSON body with model and messages."
            )
        if record.size_bytes > self._config.max_record_bytes:
            raise RequestError.body_too_large(record.size_bytes, self._config.max_record_bytes)
        headers = RequestHeaders.decode(record)
        tenant, flow = self._sender(headers, record)
        if headers.reply_topic is not None and not self._allowed(headers.reply_topic, tenant):
            raise RequestError.reply_topic_not_allowed(headers.reply_topic, REPLY_TOPIC)
        sent_ms = headers.sent_ms(record.timestamp_ms)
        order = self._cancelling(headers.request_id, headers.job_id, tenant, sent_ms)
        if order is not None and order.move_to is None:
            raise RequestError.cancelled(order.reason)
        # Parsing a large body would hold the loop up; staging checks it anyway.
        unread = len(record.value) > _LARGE_BODY_BYTES
        body = {} if unread else loads_object(record.value)
        kind = None if unread else request_kind(body)
        now_s = self._monotonic_s()
        left_s = self._time_left_s(origin, headers, record.timestamp_ms)
        hard_deadline_s = None if left_s is None else now_s + left_s
        slo_s = self._ttft_slo_s.get(origin)
        prompts, choices = asked_sequences(body)
        return Arrival(
            id=record.id,
            timestamp_ms=record.timestamp_ms,
            epoch=epoch,
            headers=headers,
            origin_class=origin,
            service_class=self._service_class(origin, headers, body, record),
            tenant=tenant,
            flow=flow,
            arrived_s=now_s,
            ttft_deadline_s=None if slo_s is None else now_s + slo_s,
            hard_deadline_s=hard_deadline_s,
            body_bytes=len(record.value),
            body_unread=unread,
            max_tokens=0 if kind is EmbeddingRequest else _output_limit(body),
            prompts=prompts,
            choices=choices,
        )

    def _time_left_s(self, origin: PriorityClass, headers: RequestHeaders, timestamp_ms: int) -> float | None:
        """How long it may still wait: by its own deadline or by its class's limit, the earlier; None: for ever.

        Raises `RequestError`."""
        deadline_ms, limit_s = headers.deadline_at_ms(timestamp_ms), self._max_queue_s[origin]
        if limit_s is not None and timestamp_ms >= 0:
            limit_ms = timestamp_ms + int(1000 * limit_s)
            deadline_ms = limit_ms if deadline_ms is None else min(deadline_ms, limit_ms)
        if deadline_ms is None:
            return None
        left_s = deadline_ms / 1000 - self._wall_s()
        if left_s <= 0:
            raise RequestError.expired(int(-left_s * 1000))
        return left_s

    def _allowed(self, topic: str, tenant: str | None) -> bool:
        """Whether replies to this tenant may go to this topic. None: nobody knows whose request it is."""
        own = () if tenant is None else self._config.tenant_reply_topics.get(tenant, ())
        return topic == self._default_reply_topic or any(
            topic.startswith(pattern[:-1]) if pattern.endswith("*") else topic == pattern
            for pattern in (*self._config.allowed_reply_topics, *own)
        )

    @staticmethod
    def _service_class(
        origin: PriorityClass, headers: RequestHeaders, body: Mapping[str, Any], record: InboundRecord
    ) -> PriorityClass:
        tier = None if headers.tier is None else PriorityClass.from_label(headers.tier)
        try:
            service = service_class(origin, tier)
        except ClassRaisedError as error:
            raise RequestError.invalid_request(TIER, f"{TIER} {error}", "priority_raised") from error
        wish = body.get("priority")
        # Whatever else stands there is refused at staging, where the body is checked field by field.
        if isinstance(wish, str) and wish.lower() in {member.label for member in PriorityClass}:
            wish = int(wish[1:])
        if isinstance(wish, int) and not isinstance(wish, bool) and wish in set(PriorityClass):
            if wish < origin and REQUEUED in dict(record.headers):
                return service  # it was said of the topic that it came from
            try:
                service = max(service, service_class(origin, PriorityClass(wish)))
            except ClassRaisedError as error:
                raise RequestError.invalid_request("priority", f"priority {error}", "priority_raised") from error
        return service

    def _salvaged_tenant(self, record: InboundRecord) -> str | None:
        try:
            headers = RequestHeaders.decode(record)
        except RequestError:
            return None
        return headers.tenant if self._trust_tenant_header and headers.tenant else _ANONYMOUS

    def _salvaged_address(self, record: InboundRecord) -> ReplyAddress:
        address = ReplyAddress.salvage(record)
        if address.topic is not None and not self._allowed(address.topic, self._salvaged_tenant(record)):
            return ReplyAddress(address.request_id, None, None, address.correlation_id, address.identified)
        return address


def _output_limit(body: Mapping[str, Any]) -> int | None:
    """As the body names it, not checked yet."""
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    return limit if isinstance(limit, int) and limit > 0 else None
