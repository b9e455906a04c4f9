"""Connections that authenticate again before the broker closes them (KIP-368).

Knows aiokafka's connections, which authenticate once (aiokafka#1105). Does not know what is sent over them. Private
matters of aiokafka 0.14: a broker test holds it to them.

A broker with `connections.max.reauth.ms`, or of a token that runs out, tells with the last word of an authentication
how long that holds, and closes the connection at the first request after it. So every client would lose a request on
every connection each time: fetches fail, producers are replaced, the coordinator counts as dead. Here the connection's
first request after most of that time waits while it authenticates again, on the same connection; so do those that come
meanwhile, and they go in their order. Requests under way are answered before (a broker takes one at a time of a
connection), and an idle connection costs nothing: the broker takes a new authentication after the end, too. If it is
refused the connection is closed, as at its beginning.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any

import aiokafka.conn
from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.protocol.admin import SaslAuthenticateRequest, SaslHandShakeRequest

__all__ = ["RenewedConnection", "authenticate_again"]

_RENEWED_AT = 0.85
"""Of the time that the broker gives."""


class RenewedConnection(AIOKafkaConnection):  # type: ignore[misc] # aiokafka is untyped
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._renew_s: float | None = None
        """On the loop's clock. None: what it has authenticated with holds for ever."""
        self._turn = asyncio.Lock()
        self._held = 0
        """Requests that wait for their turn, or have it: those that come meanwhile are behind them."""

    def send(self, request: Any, expect_response: bool = True) -> Awaitable[Any]:
        """Raises `KafkaConnectionError`, at once or when it is awaited."""
        if isinstance(request, SaslAuthenticateRequest):
            return self._authenticate(request)
        if isinstance(request, SaslHandShakeRequest) or not (self._held or self._is_due()):
            answer: Awaitable[Any] = super().send(request, expect_response)
            return answer
        return self._send_in_turn(request, expect_response)

    def _is_due(self) -> bool:
        return self._renew_s is not None and self._loop.time() >= self._renew_s and self.connected()

    async def _authenticate(self, request: Any) -> Any:
        asked_s = self._loop.time()
        answer = await super().send(request)
        lifetime_ms = getattr(answer, "session_lifetime_ms", 0)
        if lifetime_ms > 0:  # with the last one
            self._renew_s = asked_s + _RENEWED_AT * lifetime_ms / 1000
        return answer

    async def _send_in_turn(self, request: Any, expect_response: bool) -> Any:
        self._held += 1
        try:
            async with self._turn:
                if self._is_due():
                    await self._renew()
                answer = super().send(request, expect_response)
        finally:
            self._held -= 1
        return await answer

    async def _renew(self) -> None:
        try:
            await self._do_sasl_handshake()
        except BaseException:
            # Cancelled, or out of time: the broker waits for the rest of it, and takes nothing else.
            self.close(reason=CloseReason.CONNECTION_BROKEN)
            raise


def authenticate_again() -> None:
    """All connections that are made from now on."""
    aiokafka.conn.AIOKafkaConnection = RenewedConnection
