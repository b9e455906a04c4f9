"""`HeadraceClient` for scripts and notebooks: the same calls, without asyncio.

Knows one thread with an event loop, on which the asyncio client lives. Does not know Kafka (`topics.client`).

Calls may come from any thread, also from one with an event loop of its own (a notebook's), and wait there. A call that
is interrupted (Ctrl-C) is cancelled.
"""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from topics.client import Answer, EmbeddingInputs, HeadraceClient, Messages, Stream, StreamDelta
from topics.kafka_settings import KafkaSettings

__all__ = ["SyncHeadraceClient", "SyncStream"]

T = TypeVar("T")


class SyncStream:
    """An answer as it is written: `for delta in stream`, once; then `stream.answer`."""

    def __init__(self, client: "SyncHeadraceClient", stream: Stream) -> None:
        self._client = client
        self._stream = stream
        self.request_id = stream.request_id

    @property
    def answer(self) -> Answer | None:
        """Set when the iteration has ended."""
        return self._stream.answer

    def __iter__(self) -> Iterator[StreamDelta]:
        """Raises what `Stream`'s iteration raises."""
        deltas = aiter(self._stream)
        try:
            while (delta := self._client.wait_for(_next(deltas))) is not None:
                yield delta
        finally:
            self._client.wait_for(_close(deltas))


class SyncHeadraceClient:
    """`with SyncHeadraceClient("127.0.0.1:9092") as client: print(client.complete("Hello").text)`."""

    def __init__(self, kafka: KafkaSettings | str, **options: Any) -> None:
        """`options`: those of `HeadraceClient`."""
        self._client = HeadraceClient(kafka, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace-client", daemon=True)

    def __enter__(self) -> Self:
        """Raises what `HeadraceClient.__aenter__` raises."""
        self._thread.start()
        try:
            self.wait_for(self._client.__aenter__())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            self.wait_for(self._client.__aexit__(kind, error, where))
        finally:
            self._end()

    def chat(self, messages: Messages, **options: Any) -> Answer:
        """Send a chat request and wait for its whole answer. `options`: those of `HeadraceClient.chat`."""
        return self.wait_for(self._client.chat(messages, **options))

    complete = chat
    """`chat`'s older name."""

    def embed(self, inputs: EmbeddingInputs, **options: Any) -> Answer:
        """Send texts and wait for their vectors. `options`: those of `HeadraceClient.embed`."""
        return self.wait_for(self._client.embed(inputs, **options))

    def stream(self, messages: Messages, **options: Any) -> SyncStream:
        """Send a chat request and follow its answer. `options`: those of `HeadraceClient.stream`."""
        return SyncStream(self, self.wait_for(self._client.stream(messages, **options)))

    def send_chat(self, messages: Messages, **options: Any) -> str:
        """Send a chat request and return its id at once; `result` waits for the answer."""
        return self.wait_for(self._client.send_chat(messages, **options))

    def result(self, request_id: str, *, timeout_s: float | None = None) -> Answer:
        return self.wait_for(self._client.result(request_id, timeout_s=timeout_s))

    def cancel(self, request_id: str | None = None, **options: Any) -> None:
        """End requests that were sent before. `options`: those of `HeadraceClient.cancel`."""
        self.wait_for(self._client.cancel(request_id, **options))

    def submit(self, location: str | Path, **options: Any) -> str:
        """Submit a file as an offline job. `options`: those of `HeadraceClient.submit`."""
        return self.wait_for(self._client.submit(location, **options))

    def job(self, job_id: str) -> dict[str, Any]:
        """How a job goes: OpenAI's batch object."""
        return self.wait_for(self._client.job(job_id))

    def wait_for(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call of the asyncio client on its loop."""
        assert threading.current_thread() is not self._thread, "a call from the client's own loop would wait for itself"
        running = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _next(deltas: Any) -> StreamDelta | None:
    delta: StreamDelta | None = await anext(deltas, None)
    return delta


async def _close(deltas: Any) -> None:
    await deltas.aclose()
