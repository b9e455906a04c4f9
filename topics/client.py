"""The asyncio client: send a request, stream or await its answer.

Knows the wire contract from the client's side: request headers, deltas merged with the terminal reply, each piece of
text once. Does not know schedulers or models, and needs no torch.

Two readers without a group follow all partitions of the two reply topics from the moment the client is opened: deltas
with `read_uncommitted` (they are in no transaction), terminal replies with `read_committed`. Replies to others are
dropped by their request-id header, unparsed.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from types import TracebackType
from typing import Any, Self

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, Tracer

from topics.aiokafka_producer import close_producer, open_producer
from topics.codec import dumps, loads
from topics.headers import ReplyEvent, RequestHeaders
from topics.kafka_settings import KafkaSettings
from topics.reply_reader import Reply, ReplyReader

__all__ = ["Answer", "HeadraceClient", "ReplyTimeoutError", "RequestFailedError", "Stream", "StreamDelta"]

_CONNECT_TIMEOUT_S = 10.0

Messages = str | Sequence[Mapping[str, Any]]


class RequestFailedError(Exception):
    """The worker answered with an error. The attributes are those of the OpenAI error object."""

    def __init__(self, request_id: str, error: Mapping[str, Any]) -> None:
        super().__init__(f"request {request_id}: {error['message']}")
        self.request_id = request_id
        self.message: str = error["message"]
        self.type: str = error["type"]
        self.code: str | None = error.get("code")
        self.param: str | None = error.get("param")
        self.status_code: int = error["status_code"]
        self.retry_after_s: float | None = error.get("retry_after")
        self.queue_depth: int | None = error.get("queue_depth")


class ReplyTimeoutError(TimeoutError):
    """No terminal reply came in time. The request may still be answered later."""


@dataclass(frozen=True, slots=True)
class StreamDelta:
    """A piece of text as it came; `token_ids` are the tokens it covers (empty for what only the final told)."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """A request's whole answer. Times are `time.monotonic()` seconds."""

    request_id: str
    text: str
    finish_reason: str
    usage: Mapping[str, Any]
    body: Mapping[str, Any]
    """The final reply: an OpenAI `chat.completion` or `text_completion`."""
    sent_s: float
    first_delta_s: float | None
    """None: no delta arrived (`stream` was not asked for, or the final came first)."""
    ended_s: float


@dataclass(slots=True)
class _Pending:
    """A request that waits for its terminal reply. Owned by the client's event loop."""

    sent_s: float
    news: asyncio.Event = field(default_factory=asyncio.Event)
    deltas: list[StreamDelta] = field(default_factory=list)
    """Arrived and not yet taken by the reader of the stream; as many as the answer has at most."""
    next_seq: int = 0
    attempt: int = 1
    gap: bool = False
    """A delta is missing: the rest of the text is taken from the final."""
    first_delta_s: float | None = None
    terminal: Reply | None = None
    ended_s: float | None = None
    broken: Exception | None = None
    """The reader of a reply topic failed: nothing more will come."""


class Stream:
    """An answer as it is written: `async for delta in stream`, then `stream.answer`.

    Each piece of text comes once, in order, whatever was sent twice or lost on the way.
    """

    def __init__(self, client: "HeadraceClient", request_id: str, timeout_s: float) -> None:
        self.request_id = request_id
        self.answer: Answer | None = None
        """Set when the iteration has ended."""
        self._client = client
        self._timeout_s = timeout_s

    async def __aiter__(self) -> AsyncIterator[StreamDelta]:
        """Raises `RequestFailedError` and `ReplyTimeoutError`."""
        told: list[str] = []
        try:
            async with asyncio.timeout(self._timeout_s):
                async for delta in self._client._follow(self.request_id):
                    told.append(delta.text)
                    yield delta
        except TimeoutError as error:
            raise ReplyTimeoutError(
                f"request {self.request_id} was not answered within {self._timeout_s:g} s"
            ) from error
        finally:
            pending = self._client._forget(self.request_id)
        self.answer = _answer(self.request_id, pending)
        rest = self.answer.text.removeprefix("".join(told))
        if rest:
            yield StreamDelta(rest, ())


class HeadraceClient:
    """`async with HeadraceClient("127.0.0.1:9092") as client: answer = await client.complete("Hello")`."""

    def __init__(
        self,
        kafka: KafkaSettings | str,
        *,
        topic_prefix: str = "inference",
        timeout_s: float = 300.0,
        tracer: Tracer | None = None,
    ) -> None:
        """`kafka`: connection settings, or just the bootstrap servers. `timeout_s`: for a terminal reply.

        `tracer`: of the `send` spans; OpenTelemetry's global one where absent.
        """
        self._settings = KafkaSettings(bootstrap_servers=kafka) if isinstance(kafka, str) else kafka
        self._prefix = topic_prefix
        self._timeout_s = timeout_s
        self._tracer = trace.get_tracer("headrace.client") if tracer is None else tracer
        self._pending: dict[str, _Pending] = {}
        self._readers: list[ReplyReader] = []
        self._pumps: list[asyncio.Task[None]] = []
        self._producer: Any = None

    # --- life -----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Raises `KafkaUnavailableError` if no broker answers, `LookupError` if a reply topic doesn't exist."""
        self._readers = [
            ReplyReader(
                self._settings,
                f"{self._prefix}.{suffix}",
                read_committed=suffix == "replies",
                wanted=self._pending.__contains__,
                on_reply=self._take,
            )
            for suffix in ("deltas", "replies")
        ]
        self._producer = await open_producer(self._settings, "client", timeout_s=_CONNECT_TIMEOUT_S)
        try:
            for reader in self._readers:
                await reader.start()
        except BaseException:
            for reader in self._readers:
                await reader.close()
            await close_producer(self._producer, timeout_s=_CONNECT_TIMEOUT_S)
            raise
        self._pumps = [asyncio.create_task(self._pump(reader)) for reader in self._readers]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for reader in self._readers:
            reader.stop()
        await asyncio.gather(*self._pumps)
        for reader in self._readers:
            await reader.close()
        await close_producer(self._producer, timeout_s=_CONNECT_TIMEOUT_S)

    async def _pump(self, reader: ReplyReader) -> None:
        try:
            await reader.run()
        except Exception as error:  # noqa: BLE001 - handed to every caller that waits
            for pending in self._pending.values():
                pending.broken = error
                pending.news.set()

    # --- requests -------------------------------------------------------------------------------------------------

    async def complete(self, messages: Messages, *, timeout_s: float | None = None, **options: Any) -> Answer:
        """Send a chat request and wait for its whole answer. `options`: see `send_chat`."""
        request_id = await self.send_chat(messages, **options)
        return await self.result(request_id, timeout_s=timeout_s)

    async def stream(self, messages: Messages, *, timeout_s: float | None = None, **options: Any) -> Stream:
        """Send a chat request and follow its answer. `options`: see `send_chat`."""
        request_id = await self.send_chat(messages, stream=True, **options)
        return Stream(self, request_id, self._timeout_s if timeout_s is None else timeout_s)

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
        headers = RequestHeaders(
            request_id=request_id or uuid.uuid4().hex,
            tenant=tenant,
            flow=flow,
            deadline_ms=deadline_ms,
            sla_ms=sla_ms,
        )
        return await self.send({"messages": chat, **body}, priority=priority, headers=headers)

    async def send(self, body: Mapping[str, Any], *, priority: str, headers: RequestHeaders) -> str:
        """Send any body with any headers (their trace context is replaced by the current span's)."""
        topic = f"{self._prefix}.{priority}"
        request_id = headers.request_id
        if request_id in self._pending:
            raise ValueError(f"request id {request_id!r} is in use: each request needs its own")
        self._pending[request_id] = _Pending(sent_s=time.monotonic())
        try:
            with self._tracer.start_as_current_span(
                f"send {topic}",
                kind=SpanKind.PRODUCER,
                attributes={
                    "messaging.system": "kafka",
                    "messaging.destination.name": topic,
                    "messaging.operation.name": "send",
                    "messaging.operation.type": "send",
                    "messaging.message.id": request_id,
                },
            ):
                carrier: dict[str, str] = {}
                propagate.inject(carrier)
                wire = [*headers.encode(), *((name, value.encode()) for name, value in carrier.items())]
                await self._producer.send_and_wait(
                    topic, dumps(body), key=_affinity_key(body, headers.tenant), headers=wire
                )
        except BaseException:
            del self._pending[request_id]
            raise
        return request_id

    async def result(self, request_id: str, *, timeout_s: float | None = None) -> Answer:
        """Wait for the whole answer of a request that this client sent.

        Raises `RequestFailedError` and `ReplyTimeoutError`.
        """
        stream = self.stream_of(request_id, timeout_s=timeout_s)
        async for _ in stream:
            pass
        assert stream.answer is not None
        return stream.answer

    def stream_of(self, request_id: str, *, timeout_s: float | None = None) -> Stream:
        """The stream of a request that this client sent (with `stream: true` in its body)."""
        return Stream(self, request_id, self._timeout_s if timeout_s is None else timeout_s)

    # --- replies --------------------------------------------------------------------------------------------------

    def _take(self, reply: Reply) -> None:
        pending = self._pending.get(reply.request_id)
        if pending is None or pending.terminal is not None:
            return  # not ours, or a second terminal reply: the first one is kept
        if reply.event.terminal:
            pending.terminal = reply
            pending.ended_s = time.monotonic()
        elif reply.event is ReplyEvent.DELTA:
            if pending.first_delta_s is None:
                pending.first_delta_s = time.monotonic()
            if reply.seq == pending.next_seq and not pending.gap:
                pending.next_seq += 1
                if text := _chunk_text(loads(reply.value)):
                    pending.deltas.append(StreamDelta(text, reply.token_ids))
            elif reply.seq is not None and reply.seq > pending.next_seq:
                pending.gap = True
        pending.news.set()

    async def _follow(self, request_id: str) -> AsyncIterator[StreamDelta]:
        """The deltas of a request until its terminal reply is there."""
        pending = self._pending[request_id]
        while True:
            await pending.news.wait()
            pending.news.clear()
            deltas, pending.deltas = pending.deltas, []
            for delta in deltas:
                yield delta
            if pending.terminal is not None:
                return
            if pending.broken is not None:
                raise pending.broken

    def _forget(self, request_id: str) -> _Pending:
        return self._pending.pop(request_id)


def _answer(request_id: str, pending: _Pending) -> Answer:
    assert pending.terminal is not None
    assert pending.ended_s is not None
    body = loads(pending.terminal.value)
    if pending.terminal.event is ReplyEvent.ERROR:
        raise RequestFailedError(request_id, body["error"])
    choice = body["choices"][0]
    return Answer(
        request_id=request_id,
        text=choice["message"]["content"] if "message" in choice else choice["text"],
        finish_reason=choice["finish_reason"],
        usage=body["usage"],
        body=body,
        sent_s=pending.sent_s,
        first_delta_s=pending.first_delta_s,
        ended_s=pending.ended_s,
    )


def _chunk_text(chunk: Mapping[str, Any]) -> str:
    """The text of a chat or completions chunk; the usage chunk has none."""
    if not chunk["choices"]:
        return ""
    choice = chunk["choices"][0]
    text = choice["delta"].get("content") if "delta" in choice else choice["text"]
    return text or ""


def _affinity_key(body: Mapping[str, Any], tenant: str | None) -> bytes:
    """Requests of a tenant with the same system prompt go to the same partition, so to the same prefix cache."""
    system = [message for message in body.get("messages", ()) if message.get("role") in ("system", "developer")]
    return blake2b(dumps([tenant, system]), digest_size=8).hexdigest().encode()
