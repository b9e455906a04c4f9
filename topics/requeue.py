"""A request that goes back to Kafka to wait in another class: the record that is sent anew.

Knows which headers change. Does not know who moves a request or when (`workers.engine.engine`).

The new record is the old one, with its request id, tenant and trace, so its caller gets the one terminal reply that he
waits for. What the old place gave it is written into it: its id if it had none but its place, its deadline if that
counted from its time stamp. `tier` is dropped, and `requeued` says that wishes in the body of a more urgent class than
the new topic's are no attempt to jump the queue. When it was sent first goes with it: a cancel that comes while it is
under way means it, too.
"""

from topics.headers import DEADLINE_MS, REQUEST_ID, REQUEUED, REQUEUED_SENT_MS, SLA_MS, TIER, RequestHeaders
from topics.record import InboundRecord
from topics.replies import OutboundRecord

__all__ = ["moved_record"]

_REWRITTEN = frozenset({DEADLINE_MS, REQUEST_ID, REQUEUED, REQUEUED_SENT_MS, SLA_MS, TIER})


def moved_record(record: InboundRecord, headers: RequestHeaders, topic: str) -> OutboundRecord:
    """`headers`: the record's own, decoded. `topic`: of the class that it goes to."""
    rewritten = [
        (REQUEST_ID, headers.request_id.encode()),
        (REQUEUED, record.id.topic.encode()),
        (REQUEUED_SENT_MS, b"%d" % max(0, headers.sent_ms(record.timestamp_ms))),
    ]
    if (deadline_ms := headers.deadline_at_ms(record.timestamp_ms)) is not None:
        rewritten.append((DEADLINE_MS, b"%d" % deadline_ms))
    kept = [(name, value) for name, value in record.headers if name not in _REWRITTEN]
    return OutboundRecord(topic, None, record.key, record.value, (*kept, *rewritten))
