"""What a submitter says in a job's reply partition, beside the workers' replies.

Knows three records: the `custom_id`s of some thousand rows (`manifest`), the refusal of an invalid row, and the end of
a run that was cancelled. Does not know what follows from them (`topics.jobs.collection`).

Names and refusals are written before the job's first run begins, so that a row can be named whatever becomes of it, and
whoever ends a run need not have the input. All of these records may stand there twice, after a crash.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import orjson

from topics.aiokafka_producer import KafkaUnavailableError
from topics.codec import dumps
from topics.headers import EVENT, JOB_ID, REQUEST_ID
from topics.jobs.records import JobOrder
from topics.jobs.row_ids import RowId
from topics.jobs.row_set import RowSet
from topics.kafka_settings import KafkaSettings
from topics.record import RecordId
from topics.record_producer import RecordProducer
from topics.replies import OutboundRecord, ReplyContext

if TYPE_CHECKING:
    # It knows all of a request; who only reads a job's replies need not load it.
    from topics.jobs.rows import RowProblem

__all__ = ["CANCELLED", "MANIFEST", "cancel_record", "manifest_records", "refusal_record", "write_records"]

MANIFEST = b"manifest"
CANCELLED = b"cancelled"

_NAMES_A_RECORD = 4_096
_WRITE_TIMEOUT_S = 60.0


def manifest_records(topic: str, order: JobOrder, custom_ids: Sequence[str]) -> Iterator[OutboundRecord]:
    """The `custom_id`s of all rows, in the input's order."""
    for first in range(0, len(custom_ids), _NAMES_A_RECORD):
        yield _record(topic, order, MANIFEST, [first, custom_ids[first : first + _NAMES_A_RECORD]])


def cancel_record(topic: str, order: JobOrder, run: int, unsent: RowSet) -> OutboundRecord:
    """The run is cancelled: nothing of it is sent any more, and `unsent` rows never were."""
    return _record(topic, order, CANCELLED, [run, unsent.encode()])


def refusal_record(topic: str, order: JobOrder, row: "RowProblem") -> OutboundRecord:
    """The error reply to a row that is not sent, as a worker would write it."""
    return ReplyContext(
        request_id=str(RowId(order.job_id, 1, row.row)),
        attempt=1,
        delta_topic="",
        reply_topic=topic,
        reply_partition=order.reply_partition,
        job_id=order.job_id,
        custom_id=row.custom_id,
    ).error(dumps(row.error().body()))


async def write_records(settings: KafkaSettings, role: str, records: Iterable[OutboundRecord]) -> list[RecordId]:
    """Return when brokers have all of them, in order.

    Raises `KafkaUnavailableError`, also when that takes a minute; `RecordRefusedError`.
    """
    producer = RecordProducer(settings, role)
    await producer.start()
    try:
        async with asyncio.timeout(_WRITE_TIMEOUT_S):
            acknowledgements = []
            for record in records:
                while not producer.has_room:
                    await producer.wait_for_room()
                acknowledgements.append(producer.submit(record))
            return await asyncio.gather(*acknowledgements)
    except TimeoutError as error:
        raise KafkaUnavailableError(settings, error) from error
    finally:
        await producer.stop()


def _record(topic: str, order: JobOrder, event: bytes, value: object) -> OutboundRecord:
    # Whose record it is, is told by the beginning of the request id, as of every reply.
    request_id = f"{order.job_id}~{event.decode()}".encode()
    headers = ((EVENT, event), (JOB_ID, order.job_id.encode()), (REQUEST_ID, request_id))
    return OutboundRecord(topic, order.reply_partition, order.job_id.encode(), orjson.dumps(value), headers)
