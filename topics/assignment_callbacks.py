"""Telling the owner of a consumer which partitions it has been given and which are taken back.

Knows the two callbacks, their deadline and their failures. Does not know epochs' contents or Kafka
(`topics.consumer`).

Both are called while the whole group waits, or while a consumer is being replaced: so a failure of theirs is counted
and told (`trouble`), and never raised. It stands until the same callback has gone well. Being late is no failure.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from topics.assignment import PartitionEpoch

__all__ = ["AssignmentCallbacks", "OnAssigned", "OnRevoked"]

logger = logging.getLogger(__name__)

OnAssigned = Callable[[Sequence[PartitionEpoch]], None]
"""The group has said which partitions are this member's: all of them, each time. The first of their records may have
come already."""
OnRevoked = Callable[[Sequence[PartitionEpoch]], Awaitable[None]]
"""Awaited, up to a deadline; then the partitions' bases are committed and their epochs end: stop what runs for them, or
let it end within that time."""


class AssignmentCallbacks:
    """Of one consumer. Nothing is taken back of no partitions."""

    def __init__(
        self, topic: str, on_assigned: OnAssigned | None, on_revoked: OnRevoked | None, *, revoke_timeout_s: float
    ) -> None:
        self._topic = topic
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._revoke_timeout_s = revoke_timeout_s
        self._failures = 0
        self._troubles: dict[str, str] = {}

    @property
    def failures(self) -> int:
        return self._failures

    @property
    def trouble(self) -> str | None:
        """What failed the last time that it was called, and how."""
        return "; ".join(self._troubles.values()) or None

    def assigned(self, epochs: Sequence[PartitionEpoch]) -> None:
        if self._on_assigned is None:
            return
        try:
            self._on_assigned(epochs)
        except Exception as error:  # noqa: BLE001 - as the module says
            self._failed("on_assigned", error)
        else:
            self._troubles.pop("on_assigned", None)

    async def revoked(self, epochs: Sequence[PartitionEpoch]) -> None:
        if self._on_revoked is None or not epochs:
            return
        try:
            async with asyncio.timeout(self._revoke_timeout_s):
                await self._on_revoked(epochs)
        except TimeoutError:
            logger.warning("revoking partitions of %s took over %g s", self._topic, self._revoke_timeout_s)
        except Exception as error:  # noqa: BLE001 - as the module says
            self._failed("on_revoked", error)
        else:
            self._troubles.pop("on_revoked", None)

    def _failed(self, what: str, error: Exception) -> None:
        self._failures += 1
        self._troubles[what] = f"{what} failed: {error!r}"
        logger.error("%s of %s failed", what, self._topic, exc_info=error)
