"""A small HTTP server for whoever watches the worker: `/livez`, `/readyz`, and what others mount beside them.

Knows GET and HEAD of HTTP/1.1, one answer a connection. Does not know what is told. No TLS, no bodies, no keep-alive:
for a supervisor and a scraper on a trusted network. A handler is plain code on the event loop and must be quick.

Bounded: a request's head is at most 8 KiB and comes within five seconds, and at most 64 are answered at a time.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Self

__all__ = ["HttpAnswer", "HttpEndpoint", "HttpEndpointError"]

log = logging.getLogger(__name__)

_HEAD_BYTES = 8 * 1024
_TIMEOUT_S = 5.0
_CONNECTIONS = 64


class HttpEndpointError(Exception):
    """The address can't be listened on; the message says which and why."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    body: str
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


class HttpEndpoint:
    """`mount` what is to be told, then `async with endpoint.serving():`."""

    def __init__(self, host: str, port: int) -> None:
        """Port 0: any free one, which `port` tells while serving."""
        self._host = host
        self.port = port
        self._handlers: dict[str, Callable[[], HttpAnswer]] = {}
        self._connections = 0

    @classmethod
    def at(cls, address: str) -> Self:
        """`HOST:PORT`."""
        host, _, port = address.rpartition(":")
        return cls(host.strip("[]"), int(port))

    def mount(self, path: str, handler: Callable[[], HttpAnswer]) -> None:
        """Answer this path, exactly as it is written, without its query."""
        assert path not in self._handlers, f"{path} is mounted already"
        self._handlers[path] = handler

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Raises `HttpEndpointError`."""
        try:
            server = await asyncio.start_server(self._connected, self._host, self.port, limit=_HEAD_BYTES)
        except OSError as error:
            raise HttpEndpointError(f"health.listen: {self._host}:{self.port} can't be listened on: {error}") from error
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            await server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                head = b"" if self._connections > _CONNECTIONS else await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            log.debug("a connection to the HTTP endpoint was dropped: %r", error)
        finally:
            self._connections -= 1
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        """`head`: up to the empty line; nothing where there are too many connections."""
        if not head:
            return _encode(HttpAnswer("too many connections\n", HTTPStatus.SERVICE_UNAVAILABLE), with_body=True)
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _encode(HttpAnswer("not HTTP/1.1\n", HTTPStatus.BAD_REQUEST), with_body=True)
        method, target, _ = words
        if method not in ("GET", "HEAD"):
            return _encode(HttpAnswer("GET or HEAD\n", HTTPStatus.METHOD_NOT_ALLOWED), with_body=True)
        handler = self._handlers.get(target.partition("?")[0])
        if handler is None:
            told = HttpAnswer(f"{', '.join(sorted(self._handlers))}\n", HTTPStatus.NOT_FOUND)
        else:
            told = handler()
        return _encode(told, with_body=method == "GET")


def _encode(answer: HttpAnswer, *, with_body: bool) -> bytes:
    body = answer.body.encode()
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (body if with_body else b"")
