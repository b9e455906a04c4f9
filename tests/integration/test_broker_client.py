"""The client against the broker and a tiny responder made of our own consumer and producers."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence

import orjson
import pytest
from aiokafka import AIOKafkaProducer
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.integration.conftest import KafkaHandle
from tests.topics.raw_batches import RawName, send_raw
from topics.admin import KafkaAdmin
from topics.aiokafka_producer import KafkaUnavailableError
from topics.assignment import PartitionEpoch
from topics.catalogue import Catalogue, create_topics
from topics.client import (
    HeadraceClient,
    ReplyTimeoutError,
    RequestFailedError,
    RequestRefusedError,
    TopicMissingError,
    UnknownRequestError,
    UnreadableReplyError,
)
from topics.consumer import ClassConsumer
from topics.errors import RequestError
from topics.headers import RequestHeaders
from topics.kafka_settings import KafkaSettings
from topics.producer import DeltaProducer, ReplyProducer
from topics.record import InboundRecord
from topics.replies import ReplyContext
from topics.sync_client import SyncHeadraceClient

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]

WORDS = ["Water ", "falls ", "down."]


class Responder:
    """Answers every request of one class as its first message says, the way a worker would."""

    def __init__(self, settings: KafkaSettings, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self.requests: list[tuple[RequestHeaders, InboundRecord]] = []
        self.deltas = DeltaProducer(settings)
        self.replies = ReplyProducer(settings, "p0")
        self._answering: set[asyncio.Task[None]] = set()
        self.consumer = ClassConsumer(
            settings, topic=catalogue.requests("p0"), group=catalogue.group("p0"), on_records=self._on_records
        )

    async def start(self) -> None:
        for part in (self.deltas, self.replies, self.consumer):
            await part.start()
        await self.consumer.wait_assigned()

    async def stop(self) -> None:
        await asyncio.gather(*self._answering)
        for part in (self.consumer, self.deltas, self.replies):
            await part.stop()

    def _on_records(self, partition: PartitionEpoch, records: Sequence[InboundRecord]) -> None:
        for record in records:
            task = asyncio.create_task(self._answer(partition, record))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, partition: PartitionEpoch, record: InboundRecord) -> None:
        headers = RequestHeaders.decode(record)
        self.requests.append((headers, record))
        body = orjson.loads(record.value or b"")
        context = ReplyContext(headers.request_id, 1, self._catalogue.deltas, self._catalogue.replies)
        order = body["messages"][-1]["content"]
        if order == "fail":
            error = RequestError.resource_exhausted("Too busy.", retry_after_s=2.0, queue_depth=7)
            await self.replies.send_terminal(context.error(orjson.dumps(error.body())))
        elif order == "garbage":
            await self.replies.send_terminal(context.final(b"\x00"))
        elif order != "ignore":
            if body.get("stream") and order != "final only":
                for seq, word in enumerate(WORDS):
                    chunk = {"choices": [{"index": 0, "delta": {"content": word}}]}
                    await self.deltas.send(context.delta(orjson.dumps(chunk), seq=seq, token_ids=[seq]))
            choice = {"message": {"role": "assistant", "content": "".join(WORDS)}, "finish_reason": "stop"}
            final = {"choices": [choice], "usage": {"completion_tokens": 3}}
            await self.replies.send_terminal(context.final(orjson.dumps(final)))
        assert self.consumer.complete(partition, record.id.offset) is None


@pytest.fixture
def settings(kafka: KafkaHandle) -> KafkaSettings:
    return KafkaSettings(kafka.bootstrap_servers)


@pytest.fixture
async def catalogue(settings: KafkaSettings, topic_prefix: str) -> Catalogue:
    """With the three topics that are used here; all of them would take a second a test."""
    catalogue = Catalogue(topic_prefix, request_partitions=4, reply_partitions=2)
    used = (catalogue.requests("p0"), catalogue.deltas, catalogue.replies)
    async with KafkaAdmin(settings) as admin:
        await create_topics(admin, [spec for spec in catalogue.specs() if spec.name in used], replication_factor=1)
    return catalogue


@pytest.fixture
async def responder(settings: KafkaSettings, catalogue: Catalogue) -> AsyncIterator[Responder]:
    responder = Responder(settings, catalogue)
    await responder.start()
    yield responder
    await responder.stop()


@pytest.fixture
async def client(responder: Responder, settings: KafkaSettings, topic_prefix: str) -> AsyncIterator[HeadraceClient]:
    async with HeadraceClient(settings, topic_prefix=topic_prefix, timeout_s=30.0) as client:
        yield client


async def test_a_stream_gives_each_piece_as_it_was_written_then_the_answer(client: HeadraceClient) -> None:
    stream = await client.stream("go", priority="p0")
    deltas = [delta async for delta in stream]
    # What the final's reader saw first is told in one piece.
    assert "".join(delta.text for delta in deltas) == "Water falls down."
    assert stream.answer is not None
    assert (stream.answer.text, stream.answer.finish_reason) == ("Water falls down.", "stop")
    assert stream.answer.usage == {"completion_tokens": 3}
    assert client.statistics().pending == 0


async def test_completing_waits_for_the_whole_answer(client: HeadraceClient) -> None:
    answer = await client.complete("go", priority="p0")
    assert (answer.text, answer.first_delta_s) == ("Water falls down.", None)
    assert answer.ended_s > answer.sent_s


async def test_a_final_without_its_deltas_still_tells_everything(client: HeadraceClient) -> None:
    stream = await client.stream("final only", priority="p0")
    assert [delta.text async for delta in stream] == ["Water falls down."]


async def test_many_at_once_each_get_their_own(client: HeadraceClient) -> None:
    ids = await asyncio.gather(*(client.send_chat("go", priority="p0", stream=True) for _ in range(50)))
    answers = await asyncio.gather(*map(client.result, ids))
    assert [answer.request_id for answer in answers] == list(ids)
    assert {answer.text for answer in answers} == {"Water falls down."}


async def test_a_workers_error_is_raised_with_all_that_it_says(client: HeadraceClient) -> None:
    with pytest.raises(RequestFailedError, match="Too busy") as raised:
        await client.complete("fail", priority="p0")
    failure = raised.value
    assert (failure.status_code, failure.code) == (503, "resource_exhausted")
    assert (failure.retry_after_s, failure.queue_depth) == (2.0, 7)


async def test_an_answer_that_is_none_is_told_apart_from_a_missing_one(client: HeadraceClient) -> None:
    with pytest.raises(UnreadableReplyError):
        await client.complete("garbage", priority="p0")


async def test_silence_is_a_time_out_and_the_request_is_forgotten(client: HeadraceClient) -> None:
    with pytest.raises(ReplyTimeoutError, match=r"not answered within 0\.2 s"):
        await client.complete("ignore", priority="p0", timeout_s=0.2)
    assert client.statistics().pending == 0


async def test_a_slow_reader_of_the_stream_is_not_timed_out(client: HeadraceClient) -> None:
    stream = await client.stream("go", priority="p0", timeout_s=1.0)
    pieces = []
    async for delta in stream:
        pieces.append(delta.text)
        if len(pieces) == 1:
            # The time-out is for the worker's silence, not for what the caller does with the text.
            await asyncio.sleep(1.2)
    assert "".join(pieces) == "Water falls down."


async def test_requests_that_share_a_prefix_go_to_one_partition(client: HeadraceClient, responder: Responder) -> None:
    def chat(system: str, user: str) -> list[dict[str, str]]:
        return [{"role": "system", "content": system}, {"role": "user", "content": user}]

    for number in range(3):
        await client.complete(chat("You are brief.", f"{number}"), priority="p0", tenant="acme", flow=f"f{number}")
    await client.complete(chat("You are long-winded.", "go"), priority="p0", tenant="acme")
    await client.complete("go", priority="p0", tenant="acme", flow="talk")
    await client.complete("go", priority="p0", tenant="acme")
    keys = [record.key for _, record in responder.requests]
    assert keys[0] is not None
    assert len(set(keys[:3])) == 1
    assert len(set(keys[2:])) == 4
    assert keys[5] is None


async def test_the_record_carries_the_headers_and_the_trace_of_its_send_span(
    responder: Responder, settings: KafkaSettings, topic_prefix: str
) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    async with HeadraceClient(settings, topic_prefix=topic_prefix, tracer=tracer) as client:
        with tracer.start_as_current_span("caller") as caller:
            answer = await client.complete("go", priority="p0", tenant="acme", flow="f", sla_ms=60_000)
    headers, _ = responder.requests[0]
    assert (headers.request_id, headers.tenant, headers.flow, headers.sla_ms) == (
        answer.request_id,
        "acme",
        "f",
        60_000,
    )
    span = next(span for span in exporter.get_finished_spans() if span.name == f"send {topic_prefix}.p0")
    assert span.context is not None
    assert span.context.trace_id == caller.get_span_context().trace_id
    parent = f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}"
    assert str(headers.traceparent).startswith(parent)
    attributes = span.attributes or {}
    assert attributes["messaging.destination.name"] == f"{topic_prefix}.p0"
    assert attributes["messaging.operation.type"] == "send"
    assert attributes["messaging.message.id"] == answer.request_id


async def test_a_request_too_large_for_its_topic_is_refused(client: HeadraceClient) -> None:
    with pytest.raises(RequestRefusedError, match="was not sent"):
        await client.complete("x" * 3_000_000, priority="p0")
    assert client.statistics().pending == 0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda client: client.complete("go", priority="urgent"), "expected one of p0, p1, p2, p3"),
        (lambda client: client.complete("go", priority="p0", request_id="twice"), "needs its own"),
    ],
)
async def test_what_the_caller_got_wrong_is_said_at_once(
    client: HeadraceClient, wrong: Callable[[HeadraceClient], AsyncIterator[object]], words: str
) -> None:
    await client.send_chat("go", priority="p0", request_id="twice")
    with pytest.raises(ValueError, match=words):
        await wrong(client)  # type: ignore[misc]


async def test_an_answer_can_be_taken_once(client: HeadraceClient) -> None:
    answer = await client.complete("go", priority="p0")
    with pytest.raises(UnknownRequestError, match="its answer was taken"):
        await client.result(answer.request_id)


async def test_closing_tells_those_who_wait_and_leaves_no_task(settings: KafkaSettings, catalogue: Catalogue) -> None:
    async with HeadraceClient(settings, topic_prefix=catalogue.prefix) as client:
        request_id = await client.send_chat("nobody is there", priority="p0")
        waiting = asyncio.ensure_future(client.result(request_id))
        await asyncio.sleep(0)
    with pytest.raises(ConnectionError, match="was closed"):
        await waiting
    assert len(asyncio.all_tasks()) == 1


async def test_entering_without_a_broker_fails_with_the_address() -> None:
    with pytest.raises(KafkaUnavailableError, match=r"127\.0\.0\.1:9"):
        async with HeadraceClient("127.0.0.1:9"):
            raise AssertionError("there is nobody to ask")
    assert len(asyncio.all_tasks()) == 1


async def test_a_header_name_that_is_not_utf_8_among_the_replies_ends_no_stream(
    client: HeadraceClient, settings: KafkaSettings, catalogue: Catalogue
) -> None:
    async with AIOKafkaProducer(bootstrap_servers=settings.bootstrap_servers) as producer:
        for topic in (catalogue.deltas, catalogue.replies):
            for partition in range(2):
                await send_raw(producer, topic, partition, [(b"k", b"v", [(RawName(b"\xff"), b"v")])])
    assert (await client.complete("go", priority="p0")).text == "Water falls down."


async def test_missing_topics_are_named_with_the_command_that_creates_them(settings: KafkaSettings) -> None:
    with pytest.raises(TopicMissingError, match=r"nowhere\.deltas.*headrace topics create"):
        async with HeadraceClient(settings, topic_prefix="nowhere"):
            raise AssertionError("there is nothing to read")
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.usefixtures("responder")
async def test_the_synchronous_client_does_the_same(settings: KafkaSettings, topic_prefix: str) -> None:
    """From a thread without a loop, while this one has the responder's."""

    def use() -> tuple[str, str, str]:
        with SyncHeadraceClient(settings, topic_prefix=topic_prefix, timeout_s=30.0) as client:
            answer = client.complete("go", priority="p0")
            stream = client.stream("go", priority="p0")
            pieces = "".join(delta.text for delta in stream)
            assert stream.answer is not None
            later = client.result(client.send_chat("go", priority="p0"))
            with pytest.raises(RequestFailedError, match="Too busy"):
                client.complete("fail", priority="p0")
        return answer.text, pieces, later.text

    assert await asyncio.to_thread(use) == ("Water falls down.",) * 3


async def test_a_synchronous_client_without_a_broker_leaves_no_thread() -> None:
    threads = threading.active_count()
    with pytest.raises(KafkaUnavailableError), SyncHeadraceClient("127.0.0.1:1"):
        pass
    assert threading.active_count() == threads
