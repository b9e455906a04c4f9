"""What a class consumer tells of itself.

Knows numbers only; `topics.consumer` takes them.
"""

from dataclasses import dataclass

__all__ = ["ConsumerStatistics"]


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    topic: str
    group: str
    assigned: int
    """Partitions."""
    paused: bool
    unread: int
    """Records that stand in the assigned partitions behind the last one handed out, as of the last fetch."""
    resident: int
    """Handed out and not complete."""
    completed_beyond_base: int
    """Complete above a record that is not: what the map in the commit metadata tells the next owner."""
    records: int
    """Handed out since the start."""
    rebalances: int
    commits: int
    commits_rejected: int
    """The group had moved on. Their records come again, to whoever owns the partition now."""
    commits_failed: int
    """No answer in time, or an error; tried again with the next one."""
    offset_resets: int
    """A partition's committed offset was out of range: records had expired unread, or the topic was made anew."""
    records_lost: int
    """Expired unread."""
    rebuilds: int
    """How often the consumer underneath was replaced."""
    callback_failures: int
    """How often `on_assigned` or `on_revoked` raised."""
    metadata_unreadable: int
    """How often a partition's map of completed offsets could not be read: it began at its base alone."""
    last_poll_s: float
    """`time.monotonic()` of the last poll that returned."""
    unhealthy: str | None
    """Why this consumer can't be relied on now; None: all is well (again)."""

    @property
    def healthy(self) -> bool:
        return self.unhealthy is None
