"""The asyncio client: send a request, stream or await its answer.

Knows the wire contract from the client's side: topics, request headers, trace context. Does not know who waits for
which reply (`topics.pending_answers`), how a stream is put together (`topics.reply_merge`), schedulers or models, and
needs no torch.

Two readers without a group follow the two reply topics from the moment the client is opened: deltas with
`read_uncommitted` (they are in no transaction), terminal replies with `read_committed`. They follow all partitions,
those that are added later too, and drop replies to others by their request-id header, unparsed; or one partition of the
client's own (`topics.own_partition`).
"""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, Tracer

from topics.admin import AdminError, KafkaAdmin
from topics.aiokafka_producer import KafkaUnavailableError
from topics.catalogue import CLASS_LABELS, Catalogue
from topics.codec import dumps
from topics.control_log import control_record
from topics.control_records import CANCEL_KEPT_S, cancel_order
from topics.headers import RequestHeaders
from topics.jobs.desk import cancel_submitted, job_object, submit_input
from topics.jobs.records import Priority
from topics.kafka_settings import KafkaSettings
from topics.own_partition import OwnPartition
from topics.pending_answers import PendingAnswers, ReplyTimeoutError, Stream, UnknownRequestError
from topics.record_producer import RecordProducer, RecordRefusedError
from topics.replies import OutboundRecord
from topics.reply_merge import Answer, AnswerChangedError, RequestFailedError, StreamDelta, UnreadableReplyError
from topics.reply_reader import ReplyReader

__all__ = [
    "Answer",
    "AnswerChangedError",
    "ClientStatistics",
    "HeadraceClient",
    "ReplyTimeoutError",
    "RequestFailedError",
    "RequestRefusedError",
    "Stream",
    "StreamDelta",
    "TopicMissingError",
    "UnknownRequestError",
    "UnreadableReplyError",
]

_CONNECT_TIMEOUT_S = 10.0

Messages = str | Sequence[Mapping[str, Any]]
EmbeddingInputs = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]
"""One text or several, each as text or as token ids."""


class RequestRefusedError(Exception):
    """The request can't be put on its topic: it is too large for it, or the topic is not there."""


class TopicMissingError(LookupError):
    """A topic that the client needs is not there."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} does not exist: create it with `headrace topics create`")


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    pending: int
    """Requests that were sent and whose answers were not taken."""
    unreadable_replies: int
    """Replies to us whose headers no worker can have written."""


class HeadraceClient:
    """`async with HeadraceClient("127.0.0.1:9092") as client: answer = await client.complete("Hello")`.

    Only requests of its own are in its memory, each until its answer is taken (or `forget` is called).
    """

    def __init__(
        self,
        kafka: KafkaSettings | str,
        *,
        topic_prefix: str = "inference",
        timeout_s: float = 300.0,
        send_timeout_s: float = 30.0,
        own_partition: bool = False,
        tracer: Tracer | None = None,
    ) -> None:
        """`kafka`: connection settings, or just the bootstrap servers. `timeout_s`: for a terminal reply.

        `send_timeout_s`: for a broker to acknowledge a request. `own_partition`: read one partition of the reply topics
        and not everybody's answers; the client then chooses its request ids (`topics.own_partition` says how, and what
        it does not do). `tracer`: of the `send` spans (a job has one); OpenTelemetry's global one where absent.
        """
        self._choose_partition = own_partition
        self._own: OwnPartition | None = None
        self._settings = KafkaSettings(kafka, client_id="headrace-client") if isinstance(kafka, str) else kafka
        self._catalogue = Catalogue(topic_prefix)
        self._timeout_s = timeout_s
        self._send_timeout_s = send_timeout_s
        self._tracer = trace.get_tracer("headrace.client") if tracer is None else tracer
        self._pending = PendingAnswers()
        self._readers: list[ReplyReader] = []
        self._producer = RecordProducer(self._settings, "requests")
        self._exit = AsyncExitStack()

    # --- life -----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Raises `KafkaUnavailableError` if no broker answers, `TopicMissingError` if a reply topic doesn't exist."""
        async with KafkaAdmin(self._settings, timeout_s=_CONNECT_TIMEOUT_S) as admin:
            try:
                topics = (await admin.cluster()).topics
            except AdminError as error:
                raise KafkaUnavailableError(self._settings, error) from error
        async with AsyncExitStack() as stack:
            deltas, replies = self._catalogue.deltas, self._catalogue.replies
            for topic in (deltas, replies):
                if topic not in topics:
                    raise TopicMissingError(topic)
            if self._choose_partition:
                self._own = OwnPartition.draw(topics[deltas].partitions, topics[replies].partitions)
            for topic in (deltas, replies):
                reader = ReplyReader(
                    self._settings,
                    topic,
                    read_committed=topic == self._catalogue.replies,
                    wanted=self._pending.waits,
                    on_reply=self._pending.take,
                    partition=self._partition_of(topic),
                )
                stack.push_async_callback(reader.close, _CONNECT_TIMEOUT_S)
                await reader.start(_CONNECT_TIMEOUT_S)
                self._readers.append(reader)
            stack.push_async_callback(
                self._stop_reading, [asyncio.create_task(self._pending.follow(reader)) for reader in self._readers]
            )
            stack.push_async_callback(self._producer.stop)
            await self._producer.start()
            self._exit = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self._exit.aclose()

    def _partition_of(self, topic: str) -> int | None:
        """The one to be read; None: all."""
        if self._own is None:
            return None
        return self._own.delta_partition if topic == self._catalogue.deltas else self._own.reply_partition

    async def _stop_reading(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        for reader in self._readers:
            reader.stop()
        await asyncio.wait(tasks)
        self._pending.close(ConnectionError("the client was closed"))

    # --- requests -------------------------------------------------------------------------------------------------

    async def chat(self, messages: Messages, *, timeout_s: float | None = None, **options: Any) -> Answer:
        """Send a chat request and wait for its whole answer. `options`: see `send_chat`.

        answer = await client.chat("A city, as JSON.", response_format={"type": "json_object"}, n=2)
        answer.texts, answer.tool_calls, answer.usage
        """
        request_id = await self.send_chat(messages, **options)
        return await self.result(request_id, timeout_s=timeout_s)

    complete = chat
    """`chat`'s older name."""

    async def stream(self, messages: Messages, *, timeout_s: float | None = None, **options: Any) -> Stream:
        """Send a chat request and follow its answer. `options`: see `send_chat`."""
        request_id = await self.send_chat(messages, stream=True, **options)
        return self.stream_of(request_id, timeout_s=timeout_s)

    async def embed(
        self,
        inputs: EmbeddingInputs,
        *,
        dimensions: int | None = None,
        priority: str = "p1",
        tenant: str | None = None,
        flow: str | None = None,
        request_id: str | None = None,
        deadline_ms: int | None = None,
        sla_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        """Send texts, or texts as token ids, and wait for their vectors; `dimensions`: only so many numbers of each.

        answer = await client.embed(["a cat", "a dog"])
        answer.embeddings, answer.usage
        """
        body: dict[str, Any] = {"input": inputs, "encoding_format": "base64"}
        if dimensions is not None:
            body["dimensions"] = dimensions
        headers = self._headers(request_id, tenant=tenant, flow=flow, deadline_ms=deadline_ms, sla_ms=sla_ms)
        return await self.result(await self.send(body, priority=priority, headers=headers), timeout_s=timeout_s)

    async def send_chat(
        self,
        messages: Messages,
        *,
        priority: str = "p1",
        tenant: str | None = None,
        flow: str | None = None,
        request_id: str | None = None,
        deadline_ms: int | None = None,
        sla_ms: int | None = None,
        **body: Any,
    ) -> str:
        """Send a chat request (`messages`: a list of OpenAI messages, or one user message as a string).

        `priority`: the class's topic, `p0` (most urgent) … `p3`. `body`: further fields of the chat-completions body
        (`max_tokens`, `temperature`, `stop`, …). Returns the request id; `result` or `stream_of` waits for the answer.
        """
        chat = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        headers = self._headers(request_id, tenant=tenant, flow=flow, deadline_ms=deadline_ms, sla_ms=sla_ms)
        return await self.send({"messages": chat, **body}, priority=priority, headers=headers)

    def _headers(self, request_id: str | None, **fields: Any) -> RequestHeaders:
        return RequestHeaders(request_id=request_id or self.new_request_id(), **fields)

    def new_request_id(self) -> str:
        """One that nobody has, and whose replies this client reads."""
        return uuid.uuid4().hex if self._own is None else self._own.new_id()

    def reads(self, request_id: str) -> bool:
        """Whether the replies to such a request come to where this client reads."""
        return self._own is None or self._own.holds(request_id)

    async def send(self, body: Mapping[str, Any], *, priority: str, headers: RequestHeaders) -> str:
        """Send any body with any headers (their trace context is replaced by the current span's).

        Returns when a broker has it. Raises `KafkaUnavailableError` if none takes it in time (it may be sent later all
        the same; its reply is dropped), `RequestRefusedError`, and `ValueError` for a priority or request id that
        can't be used.
        """
        if priority not in CLASS_LABELS:
            raise ValueError(f"priority = {priority!r}: expected one of {', '.join(CLASS_LABELS)} (p0 is most urgent)")
        request_id = headers.request_id
        if self._pending.waits(request_id):
            raise ValueError(f"request id {request_id!r} is in use: each request needs its own")
        if not self.reads(request_id):
            raise ValueError(
                f"request id {request_id!r}: its replies would come to a partition that this client does not read; "
                "leave the id out, take one from new_request_id(), or open the client without own_partition"
            )
        self._pending.add(request_id)
        try:
            await self._send(self._catalogue.requests(priority), body, headers)
        except BaseException:
            self.forget(request_id)
            raise
        return request_id

    async def _send(self, topic: str, body: Mapping[str, Any], headers: RequestHeaders) -> None:
        value = dumps(body)
        key = _affinity_key(body, headers)
        attributes: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.destination.name": topic,
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.client.id": self._settings.client_id,
            "messaging.message.id": headers.request_id,
            "messaging.message.body.size": len(value),
        }
        if key is not None:
            attributes["messaging.kafka.message.key"] = key.decode()
        with self._tracer.start_as_current_span(f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes) as span:
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            wire = (*headers.encode(), *((name, text.encode()) for name, text in carrier.items()))
            try:
                async with asyncio.timeout(self._send_timeout_s):
                    while not self._producer.has_room:
                        await self._producer.wait_for_room()
                    await self._producer.submit(OutboundRecord(topic, None, key, value, wire))
            except RecordRefusedError as error:
                span.set_attribute("error.type", "refused")
                raise RequestRefusedError(f"request {headers.request_id} was not sent: {error}") from error
            except TimeoutError as error:
                span.set_attribute("error.type", "timeout")
                raise KafkaUnavailableError(self._settings, error) from error

    async def result(self, request_id: str, *, timeout_s: float | None = None) -> Answer:
        """Wait for the whole answer of a request that this client sent. Raises what `Stream`'s iteration raises."""
        stream = self.stream_of(request_id, timeout_s=timeout_s)
        async for _ in stream:
            pass
        assert stream.answer is not None
        return stream.answer

    def stream_of(self, request_id: str, *, timeout_s: float | None = None) -> Stream:
        """The stream of a request that this client sent (with `stream: true` in its body)."""
        return Stream(self._pending, request_id, self._timeout_s if timeout_s is None else timeout_s)

    def forget(self, request_id: str) -> None:
        """Drop what is known of a request, and its replies from now on. Its answer is still computed."""
        self._pending.forget(request_id)

    async def cancel(
        self,
        request_id: str | None = None,
        *,
        job: str | None = None,
        tenant: str | None = None,
        keep_s: float = CANCEL_KEPT_S,
    ) -> None:
        """End a request, or all requests of a job or of a tenant, that were sent before: exactly one is named.

        Returns when a broker has the order; each request that it ends is answered with the error `cancelled`. One whose
        final is on its way already keeps it. `keep_s`: requests that no worker has read by then are run all the same.
        Of a job that was submitted it is the completion window, and its sending is over when this returns.

        Raises `KafkaUnavailableError`, `RequestRefusedError` (the control topic is not there, or may not be written),
        `JobConflictError` (the job has ended already), `ValueError`.
        """
        order = cancel_order(request_id, job=job, tenant=tenant, keep_s=keep_s)
        try:
            if job is not None and await cancel_submitted(self._settings, self._catalogue, job) is not None:
                return
            async with asyncio.timeout(self._send_timeout_s):
                while not self._producer.has_room:
                    await self._producer.wait_for_room()
                await self._producer.submit(control_record(self._catalogue, order))
        except RecordRefusedError as error:
            raise RequestRefusedError(f"the order was not given: {error}") from error
        except TimeoutError as error:
            raise KafkaUnavailableError(self._settings, error) from error

    # --- offline jobs ---------------------------------------------------------------------------------------------

    async def submit(
        self,
        location: str | Path,
        *,
        priority: Priority = "p3",
        tenant: str | None = None,
        job_id: str | None = None,
        weight: int = 1,
        completion_window_s: int = 86_400,
        metadata: Mapping[str, str] | None = None,
        skip_invalid: bool = False,
    ) -> str:
        """Submit a file in OpenAI's batch format as a job, as `headrace submit` does; its id when all rows are sent.

        Calling it again with the same file sends only what is missing. `cancel(job=…)` ends it, `job` says how it goes,
        `headrace results` or a collector writes its files. Raises what `topics.jobs.desk.submit_input` raises.
        """
        return await submit_input(
            self._settings,
            self._catalogue,
            location,
            priority=priority,
            tenant=tenant,
            job_id=job_id,
            weight=weight,
            completion_window_s=completion_window_s,
            metadata=metadata or {},
            skip_invalid=skip_invalid,
            tracer=self._tracer,
        )

    async def job(self, job_id: str) -> dict[str, Any]:
        """How a job goes: OpenAI's batch object. Raises what `topics.jobs.desk.job_object` raises."""
        return await job_object(self._settings, self._catalogue, job_id)

    def statistics(self) -> ClientStatistics:
        return ClientStatistics(len(self._pending), sum(reader.unreadable for reader in self._readers))


def _affinity_key(body: Mapping[str, Any], headers: RequestHeaders) -> bytes | None:
    """Requests that share a long prefix go to one partition, and so to one worker's prefix cache.

    They share it if tenant and system prompt are the same. Without a system prompt only the requests of one flow
    (a conversation) do; without that nothing is shared and None spreads them over the partitions.
    """
    messages = body.get("messages") or ()
    system = [message for message in messages if message.get("role") in ("system", "developer")]
    if not system and headers.flow is None:
        return None
    shared = [headers.tenant, system] if system else [headers.tenant, headers.flow]
    return blake2b(dumps(shared), digest_size=8).hexdigest().encode()
