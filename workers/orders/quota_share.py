"""This worker's part of each quota: its part of the partitions.

Knows counts of partitions. Does not know quotas or Kafka.

Whatever the rebalances, the parts of all workers of a group add up to one, without anybody asked: a partition has one
owner. That is what a division by the number of live workers is meant to give. The error: a tenant whose requests lie in
few partitions (one key, one partition) gets only their owner's part; and for as long as a rebalance takes, up to one
interval, a part counts twice or not at all.
"""

import asyncio
from collections.abc import Callable

__all__ = ["ShareOfPartitions"]


class ShareOfPartitions:
    """Looks every `interval_s`, and tells when the part has changed."""

    def __init__(
        self, assigned: Callable[[], int], partitions: int, interval_s: float, tell: Callable[[float], None]
    ) -> None:
        """`assigned`: how many of the `partitions` of all served classes this worker owns now."""
        self._assigned = assigned
        self._partitions = partitions
        self._interval_s = interval_s
        self._tell = tell
        self._told = 1.0

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self.look()
            try:
                async with asyncio.timeout(self._interval_s):
                    await stop.wait()
            except TimeoutError:
                continue  # time to look again

    def look(self) -> None:
        assigned = self._assigned()
        # Without partitions nothing comes, and what is still here goes on as before.
        share = min(1.0, assigned / self._partitions) if assigned else self._told
        if share != self._told:
            self._told = share
            self._tell(share)
