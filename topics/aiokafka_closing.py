"""Waiting for something of aiokafka's to close, no longer than a deadline and whatever it raises.

Knows nothing of what is closed (`topics.aiokafka_producer`, `topics.aiokafka_consumer`).

`stop()` and `close()` of aiokafka's clients can wait without end for a broker (aiokafka#1101, #1039), and can raise
the `CancelledError` of a task of their own (the fetcher's, cancelled while it waits between two attempts), which looks
as if the caller had been cancelled. So each runs in a task here, and only its outcome is looked at.
"""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any

__all__ = ["closes_within"]

logger = logging.getLogger(__name__)

_CANCELLATION_S = 2.0


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
