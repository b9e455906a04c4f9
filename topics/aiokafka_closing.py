"""Closing what is aiokafka's: no longer than a deadline, whatever it raises, and also what it has lost itself.

Knows nothing of what is closed (`topics.aiokafka_producer`, `topics.aiokafka_consumer`).

`stop()` and `close()` of aiokafka's clients can wait without end for a broker (aiokafka#1101, #1039), and can raise
the `CancelledError` of a task of their own (the fetcher's, cancelled while it waits between two attempts), which looks
as if the caller had been cancelled. So each runs in a task here, and only its outcome is looked at.

A client that is closed while it works connects again: a request that its closing ended is tried once more by a task
that lives on. `close_client` lets it not, and waits for what is being connected.

A client that is cancelled while it bootstraps drops the connection that it has just opened: nothing but the frame that
was cancelled knows it any more, and it stays open until the garbage is collected. `close_bootstrap_connection` finds
it there. The name of the frame's variable is a private matter of aiokafka's; the broker tests hold it to 0.14.
"""

import asyncio
import logging
import traceback
from collections.abc import Awaitable
from typing import Any

from aiokafka.conn import AIOKafkaConnection

__all__ = ["close_bootstrap_connection", "close_client", "closes_within"]

logger = logging.getLogger(__name__)

_CANCELLATION_S = 2.0
_SWALLOWED_S = 0.5
"""Python 3.11's `wait_for`, which aiokafka waits by, may swallow a cancellation: then again."""


async def closes_within(closing: Awaitable[Any], timeout_s: float, what: str) -> bool:
    """Whether `closing` came to a good end in time. If not it is cancelled, and the log says why."""
    task = asyncio.ensure_future(closing)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
    finally:
        if late := not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCELLATION_S)
    if late:
        logger.info("%s did not close within %g s", what, timeout_s)
    elif task.cancelled():
        logger.debug("%s was cancelled from within while it closed", what)
    elif (error := task.exception()) is not None:
        logger.info("%s did not close in order: %r", what, error)
    else:
        return True
    return False


async def close_client(client: Any, timeout_s: float, what: str) -> bool:
    """Close an `AIOKafkaClient` for good: no task that still runs connects again. As `closes_within`."""

    async def close() -> None:
        # First, and whatever it ends with: what it raises would come out of the client's own close before the rest.
        while (updating := client._sync_task) is not None and not updating.done():
            updating.cancel()
            await asyncio.wait({updating}, timeout=_SWALLOWED_S)
        client._sync_task = None
        await client.close()
        async with client._get_conn_lock:  # whoever holds it adds a connection to the client's
            await client.close()

    client._get_conn = _no_connection
    return await closes_within(close(), timeout_s, what)


async def _no_connection(*_: Any, **__: Any) -> None:
    """In the place of aiokafka's own, which answers None too when a node can't be reached."""


def close_bootstrap_connection(error: BaseException) -> None:
    """Close the connection that a client's `start()` left open when it ended with `error`, if it left one."""
    cause: BaseException | None = error
    while cause is not None:
        for frame, _ in traceback.walk_tb(cause.__traceback__):
            lost = frame.f_locals.get("bootstrap_conn")
            if isinstance(lost, AIOKafkaConnection) and lost.connected():
                lost.close()
        cause = cause.__cause__ or cause.__context__
