"""Record batches as a client that is not aiokafka may send them: header names of any bytes."""

from collections.abc import Sequence

from aiokafka import AIOKafkaProducer
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

__all__ = ["RawName", "raw_batch", "send_raw"]

RawRecord = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]
"""Key, value, headers."""


class RawName(str):
    """A header name of which the UTF-8 form is a lie: aiokafka's builder in Python writes `data` instead."""

    __slots__ = ("data",)

    data: bytes

    def __new__(cls, data: bytes) -> "RawName":
        name = super().__new__(cls, data.decode(errors="backslashreplace"))
        name.data = data
        return name

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return self.data


def raw_batch(records: Sequence[RawRecord], *, codec: int = 0) -> bytes:
    """One batch at offset 0, the first record at 1,000 ms, each a millisecond after the last."""
    return bytes(_builder(records, codec, first_ms=1_000).build())


async def send_raw(producer: AIOKafkaProducer, topic: str, partition: int, records: Sequence[RawRecord]) -> None:
    """Produce them as one batch. The producer must not be idempotent."""
    batch = producer.create_batch()
    batch._builder = _builder(records, 0, first_ms=None)
    batch._relative_offset = len(records)
    await (await producer.send_batch(batch, topic, partition=partition))


def _builder(records: Sequence[RawRecord], codec: int, first_ms: int | None) -> _DefaultRecordBatchBuilderPy:
    builder = _DefaultRecordBatchBuilderPy(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=2**20,
    )
    for offset, (key, value, headers) in enumerate(records):
        timestamp_ms = None if first_ms is None else first_ms + offset
        assert builder.append(offset, timestamp_ms, key, value, list(headers)) is not None
    return builder
