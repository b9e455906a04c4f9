"""Dead letters: a record that can't be answered, kept with its bytes and the reason.

Knows the headers (KIP-1191's names, values as text). Does not decide what is dead.
"""

from topics.record import InboundRecord
from topics.replies import OutboundRecord

__all__ = ["dead_letter"]

_PREFIX = "__dlq.errors."


def dead_letter(record: InboundRecord, topic: str, *, group: str, delivery_count: int, message: str) -> OutboundRecord:
    """The record as it was (key, value, headers), with `__dlq.errors.*` headers behind its own.

    `delivery_count`: how often it was given to a worker, from 1. `message` says why, and carries no request text.
    """
    place = record.id
    reasons = {
        "topic": place.topic,
        "partition": place.partition,
        "offset": place.offset,
        "group": group,
        "delivery.count": delivery_count,
        "message": message,
    }
    # A record that is replayed and dies again carries the newest reasons only.
    kept = tuple((name, value) for name, value in record.headers if not name.startswith(_PREFIX))
    return OutboundRecord(
        topic=topic,
        key=record.key,
        value=record.value,
        headers=(*kept, *((_PREFIX + name, str(value).encode()) for name, value in reasons.items())),
    )
