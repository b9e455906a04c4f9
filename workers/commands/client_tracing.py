"""The producer's spans of commands that send requests: exported where the `OTEL_*` variables ask for it.

Not a command itself.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from opentelemetry.trace import Tracer

from topics.extras import how_to_install
from workers.telemetry.telemetry import otlp_is_wanted, tracer_provider

__all__ = ["client_tracer"]

log = logging.getLogger(__name__)


@asynccontextmanager
async def client_tracer(service_name: str) -> AsyncIterator[Tracer | None]:
    """None where nothing asks for spans. What was recorded is exported at the end."""
    if not otlp_is_wanted("TRACES"):
        yield None
        return
    try:
        provider = tracer_provider(service_name=service_name)
    except ModuleNotFoundError as error:
        log.warning("the producer's span is not exported (no %s): %s", error.name, how_to_install("worker"))
        yield None
        return
    try:
        yield provider.get_tracer("headrace.client")
    finally:
        await asyncio.to_thread(provider.shutdown)
