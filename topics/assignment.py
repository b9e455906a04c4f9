"""The partitions that a consumer holds: their epochs, what was handed out of them, what may be committed.

Knows numbers only. Does not know Kafka or how a commit is made (`topics.consumer`). Pure and synchronous.

Each time a partition is given to the consumer is an **epoch**; the numbers rise over all partitions, so a later
assignment has the higher number.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from topics.offsets import CompletedRun, CompletionTracker, OffsetRefusal

__all__ = ["Assignment", "AssignmentStatistics", "PartitionEpoch", "Progress", "Unsaved"]


class PartitionEpoch(NamedTuple):
    """One assignment of one partition."""

    topic: str
    partition: int
    epoch: int


@dataclass(frozen=True, slots=True)
class AssignmentStatistics:
    partitions: int
    resident: int
    """Records that were handed out and are not complete."""
    completed_beyond_base: int
    """What a crash now would run again although it is done."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a partition's next owner must know: everything below `base` is complete, and so are the runs beyond it."""

    base: int
    runs: tuple[CompletedRun, ...] = ()

    def covers(self, offset: int) -> bool:
        return offset < self.base or any(run.first <= offset <= run.last for run in self.runs)


@dataclass(slots=True)
class _Held:
    assigned: PartitionEpoch
    tracker: CompletionTracker = field(default_factory=CompletionTracker)
    committed: tuple[int, int] | None = None
    """Base and completions as of the last commit in this epoch; at first, those it began with. None: nothing handed
    out."""
    next_offset: int | None = None
    """Behind the last record that was handed out."""

    @property
    def state(self) -> tuple[int, int]:
        return self.tracker.base, self.tracker.completions


class Unsaved(NamedTuple):
    """Progress to be committed."""

    assigned: PartitionEpoch
    progress: Progress
    state: tuple[int, int]
    """To be handed back to `Assignment.saved`."""


class Assignment:
    """Of one topic. Refuses, as values, what belongs to an epoch that has ended."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._held: dict[int, _Held] = {}
        self._adopted: dict[int, Progress] = {}
        """Of partitions that may not have begun yet."""
        self._epoch = 0

    def __contains__(self, partition: int) -> bool:
        return partition in self._held

    @property
    def partitions(self) -> Collection[int]:
        return tuple(self._held)

    def begin(self, partitions: Collection[int]) -> list[PartitionEpoch]:
        """A new epoch for each of them; none of them is held."""
        begun: list[PartitionEpoch] = []
        for partition in sorted(partitions):
            assert partition not in self._held, f"partition {partition} is held already"
            self._epoch += 1
            held = self._held[partition] = _Held(PartitionEpoch(self._topic, partition, self._epoch))
            begun.append(held.assigned)
        return begun

    def adopt(self, partition: int, progress: Progress | None) -> None:
        """What the group's last commit says of a partition, before the first of its records is handed out.

        It may come before `begin`. None: there is no commit.
        """
        self._adopted.pop(partition, None)
        if progress is not None:
            self._adopted[partition] = progress

    def current(self, partitions: Collection[int]) -> list[PartitionEpoch]:
        """The epochs of those that are held, by partition."""
        return [self._held[partition].assigned for partition in sorted(partitions) if partition in self._held]

    def end(self, epochs: Sequence[PartitionEpoch]) -> None:
        """Forget them. Those that have ended already are left out."""
        for assigned in epochs:
            held = self._held.get(assigned.partition)
            if held is not None and held.assigned == assigned:
                held.tracker.end()
                del self._held[assigned.partition]
                self._adopted.pop(assigned.partition, None)

    def hand_out(self, partition: int, offset: int) -> bool:
        """Whether the record is new in this epoch, and so to be run. The first one begins the count."""
        held = self._held[partition]
        epoch = held.assigned.epoch
        if held.committed is None:
            progress = self._adopted.get(partition, Progress(offset))
            held.tracker.start(epoch, progress.base, progress.runs)
            held.committed = held.state
        held.next_offset = offset + 1
        return held.tracker.insert(epoch, offset) is None

    def owns(self, assigned: PartitionEpoch) -> bool:
        """Whether this epoch lasts."""
        held = self._held.get(assigned.partition)
        return held is not None and held.assigned == assigned

    def complete(self, assigned: PartitionEpoch, offset: int) -> OffsetRefusal | None:
        """None: taken; it will be committed."""
        held = self._held.get(assigned.partition)
        if held is None or assigned.topic != self._topic:
            return OffsetRefusal.STALE_EPOCH
        return held.tracker.complete(assigned.epoch, offset)

    def outlook(self, assigned: PartitionEpoch, offsets: Collection[int]) -> Progress | None:
        """The progress of this epoch when these offsets, too, are complete. None: it is over."""
        held = self._held.get(assigned.partition)
        found = None if held is None else held.tracker.outlook(assigned.epoch, offsets)
        return None if found is None else Progress(found[0], tuple(found[1]))

    def unsaved(self, epochs: Sequence[PartitionEpoch] | None = None) -> list[Unsaved]:
        """The progress of these epochs, if they last, or of all: where something was completed since it was saved."""
        return [
            Unsaved(held.assigned, Progress(held.tracker.base, tuple(held.tracker.completed_runs())), held.state)
            for held in self._held.values()
            if (epochs is None or held.assigned in epochs)
            and held.committed is not None
            and held.state != held.committed
        ]

    def saved(self, progress: Sequence[Unsaved]) -> None:
        """These are on the broker now."""
        for unsaved in progress:
            held = self._held.get(unsaved.assigned.partition)
            if held is not None and held.assigned == unsaved.assigned:
                held.committed = unsaved.state

    def next_offset(self, partition: int) -> int | None:
        """Behind the last record that was handed out; None before the first."""
        return self._held[partition].next_offset

    def statistics(self) -> AssignmentStatistics:
        trackers = [held.tracker.statistics() for held in self._held.values()]
        return AssignmentStatistics(
            partitions=len(trackers),
            resident=sum(tracker.resident for tracker in trackers),
            completed_beyond_base=sum(tracker.completed_beyond_base for tracker in trackers),
        )

    def check_integrity(self) -> None:
        """Raise `AssertionError` if the parts contradict one another."""
        epochs = [held.assigned.epoch for held in self._held.values()]
        assert len(set(epochs)) == len(epochs), f"{epochs = }"
        for partition, held in self._held.items():
            assert held.assigned.partition == partition
            assert held.assigned.epoch <= self._epoch
            if held.committed is not None:
                assert held.committed[0] <= held.tracker.base
                assert held.tracker.epoch == held.assigned.epoch
            held.tracker.check_integrity()
