"""The requests of one client whose answers were not taken yet, and who waits for each.

Knows what has come for each request, and that nothing more will come once reading has failed or ended. Does not know
how replies are read (`topics.reply_reader`), how a stream is put together (`topics.reply_merge`), or how requests are
sent (`topics.client`). Owned by one event loop.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from topics.reply_merge import Answer, ReplyMerge, StreamDelta
from topics.reply_reader import Reply, ReplyReader

__all__ = ["PendingAnswers", "ReplyTimeoutError", "Stream", "UnknownRequestError"]


class ReplyTimeoutError(TimeoutError):
    """No terminal reply came in time. The request may still be run, and its reply is dropped."""


class UnknownRequestError(LookupError):
    """The request was not sent by this client, or its answer was taken, or it was forgotten."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request {request_id!r} is not waiting: it was not sent here, or its answer was taken")


@dataclass(slots=True)
class PendingAnswer:
    """A request that waits for its terminal reply."""

    merge: ReplyMerge
    news: asyncio.Event = field(default_factory=asyncio.Event)


class PendingAnswers:
    """Each is kept until it is forgotten: by whoever takes it, or has sent the request in vain."""

    def __init__(self) -> None:
        self._pending: dict[str, PendingAnswer] = {}
        self._broken: BaseException | None = None
        """A reader of a reply topic failed, or the client was closed: nothing more will come."""

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, request_id: str) -> None:
        """Before the request is sent. Raises why nothing can come for it, if nothing can."""
        if self._broken is not None:
            raise self._broken
        self._pending[request_id] = PendingAnswer(ReplyMerge(request_id, time.monotonic()))

    def waits(self, request_id: str) -> bool:
        return request_id in self._pending

    def forget(self, request_id: str) -> None:
        """Drop what has come, and what is to come."""
        self._pending.pop(request_id, None)

    # --- replies come ---------------------------------------------------------------------------------------------

    async def follow(self, reader: ReplyReader) -> None:
        """Run a reader; if it fails, everyone who waits is told why."""
        try:
            await reader.run()
        except Exception as error:  # noqa: BLE001 - handed to every caller that waits, now or later
            self.close(error)

    def take(self, reply: Reply) -> None:
        pending = self._pending.get(reply.request_id)
        if pending is not None:
            pending.merge.take(reply, time.monotonic())
            pending.news.set()

    def close(self, reason: BaseException) -> None:
        """Nothing more will be read: tell everyone who waits, and everyone who would. The first reason stands."""
        self._broken = self._broken or reason
        for pending in self._pending.values():
            pending.news.set()

    # --- they are taken -------------------------------------------------------------------------------------------

    def of(self, request_id: str) -> PendingAnswer:
        """Raises `UnknownRequestError`."""
        if request_id not in self._pending:
            raise UnknownRequestError(request_id)
        return self._pending[request_id]

    async def wait_news(self, pending: PendingAnswer, deadline_s: float) -> None:
        """Return when anything new has come. Raises `TimeoutError` at `deadline_s` of the loop's clock, and what has
        ended the reading."""
        async with asyncio.timeout_at(deadline_s):
            await pending.news.wait()
        pending.news.clear()
        if self._broken is not None and not pending.merge.complete:
            raise self._broken


class Stream:
    """An answer as it is written: `async for delta in stream`, once; then `stream.answer`.

    Each piece of text comes once, in order, whatever was sent twice or lost on the way.
    """

    def __init__(self, answers: PendingAnswers, request_id: str, timeout_s: float) -> None:
        self.request_id = request_id
        self.answer: Answer | None = None
        """Set when the iteration has ended."""
        self._answers = answers
        self._timeout_s = timeout_s

    async def __aiter__(self) -> AsyncIterator[StreamDelta]:
        """Raises `RequestFailedError`, `ReplyTimeoutError`, `AnswerChangedError`, `UnreadableReplyError`.

        The time-out counts from the start of the iteration, and is only looked at while waiting for the worker. Raises
        `UnknownRequestError` if the request is not (or no longer) this client's.
        """
        pending = self._answers.of(self.request_id)
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        try:
            while True:
                for delta in pending.merge.take_deltas():
                    yield delta
                if pending.merge.complete:
                    break
                await self._news(pending, deadline_s)
        finally:
            self._answers.forget(self.request_id)
        self.answer = pending.merge.answer()
        for delta in pending.merge.rest(self.answer):
            yield delta

    async def _news(self, pending: PendingAnswer, deadline_s: float) -> None:
        try:
            await self._answers.wait_news(pending, deadline_s)
        except TimeoutError as error:
            raise ReplyTimeoutError(
                f"request {self.request_id} was not answered within {self._timeout_s:g} s"
            ) from error
