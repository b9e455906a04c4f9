"""The completion tracker against a model that remembers every offset by itself."""

from itertools import pairwise

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from topics.offsets import CompletedRun, CompletionTracker, OffsetRefusal


class TrackerMachine(RuleBasedStateMachine):
    """Model: a log that grows, whose records are handed out in order and may be compacted away before that."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = CompletionTracker()
        self.epoch = 0
        self.started = False
        self.pending: set[int] = set()
        self.done: set[int] = set()
        self.position = 0
        self.log: list[int] = []
        """The offsets of the records that were ever written, rising; the rest are holes for ever."""

    @initialize(base=st.integers(0, 50))
    def begin(self, base: int) -> None:
        self.position = base
        self._start(base, [])

    def _start(self, base: int, completed: list[CompletedRun]) -> None:
        self.epoch += 1
        self.tracker.start(self.epoch, base, completed)
        self.started = True

    @rule(hole=st.integers(0, 3), compacted=st.sampled_from([0, 0, 0, 1, 2]))
    def hand_out(self, hole: int, compacted: int) -> None:
        """The next record from the position on, less some that were compacted away; a new one at the log's end."""
        ahead = [offset for offset in self.log if offset >= self.position]
        if len(ahead) > compacted:
            offset = ahead[compacted]
        else:
            offset = max([self.position, *(known + 1 for known in self.log)]) + hole
            self.log.append(offset)
        # What was compacted away never comes again.
        self.log = [known for known in self.log if not self.position <= known < offset]
        refusal = self.tracker.insert(self.epoch, offset)
        if not self.started:
            assert refusal is OffsetRefusal.STALE_EPOCH
            return
        self.position = offset + 1
        if offset in self.done:
            assert refusal is OffsetRefusal.SEEN
        else:
            assert refusal is None
            self.pending.add(offset)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.pending)))
        refusal = self.tracker.complete(self.epoch, offset)
        if self.started:
            assert refusal is None
            self.pending.discard(offset)
            self.done.add(offset)
        else:
            assert refusal is OffsetRefusal.STALE_EPOCH

    @rule(offset=st.integers(0, 200))
    def complete_what_is_not_pending(self, offset: int) -> None:
        if self.started and offset not in self.pending:
            assert self.tracker.complete(self.epoch, offset) is OffsetRefusal.NOT_PENDING

    @precondition(lambda self: self.started and self.position > 0)
    @rule(data=st.data())
    def hand_out_again(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.position - 1))
        assert self.tracker.insert(self.epoch, offset) is OffsetRefusal.SEEN

    @rule(offset=st.integers(0, 200), back=st.integers(1, 3))
    def work_of_an_older_epoch(self, offset: int, back: int) -> None:
        before = self.tracker.statistics()
        assert self.tracker.complete(self.epoch - back, offset) is OffsetRefusal.STALE_EPOCH
        assert self.tracker.insert(self.epoch - back, offset) is OffsetRefusal.STALE_EPOCH
        assert self.tracker.statistics() == before

    @rule()
    def revoke(self) -> None:
        self.tracker.end()
        self.started = False

    @rule()
    def reassign_from_base_alone(self) -> None:
        """At-least-once: what was done beyond the base is handed out again."""
        base = self.tracker.base
        self.position = base
        self.pending = set()
        self.done = {offset for offset in self.done if offset < base}
        self._start(base, [])

    @rule()
    def reassign_with_the_completed_runs(self) -> None:
        """The next owner reads base and runs, and re-runs only what was pending."""
        base, runs = self.tracker.base, list(self.tracker.completed_runs())
        self.position = base
        self.pending = set()
        self._start(base, runs)

    @invariant()
    def base_is_the_lowest_offset_that_may_still_be_needed(self) -> None:
        if self.epoch == 0:
            return
        base = self.tracker.base
        assert all(offset >= base for offset in self.pending)
        if self.started and self.pending:
            assert base == min(self.pending)

    @invariant()
    def nothing_pending_lies_in_a_completed_run(self) -> None:
        runs = list(self.tracker.completed_runs())
        for run in runs:
            assert run.first <= run.last
            assert not self.pending & set(range(run.first, run.last + 1))
        assert all(left.last + 1 < right.first for left, right in pairwise(runs))

    @invariant()
    def everything_done_is_below_base_or_in_a_run(self) -> None:
        covered = {offset for run in self.tracker.completed_runs() for offset in range(run.first, run.last + 1)}
        beyond = {offset for offset in self.done if offset >= self.tracker.base}
        assert beyond <= covered

    @precondition(lambda self: self.started and self.pending)
    @rule(data=st.data())
    def an_outlook_is_what_completing_brings(self, data: st.DataObject) -> None:
        offsets = data.draw(st.sets(st.sampled_from(sorted(self.pending))))
        outlook = self.tracker.outlook(self.epoch, offsets)
        for offset in offsets:
            self.complete_one(offset)
        assert outlook == (self.tracker.base, list(self.tracker.completed_runs()))

    def complete_one(self, offset: int) -> None:
        assert self.tracker.complete(self.epoch, offset) is None
        self.pending.discard(offset)
        self.done.add(offset)

    @invariant()
    def statistics_add_up(self) -> None:
        statistics = self.tracker.statistics()
        if self.started:
            assert statistics.resident == len(self.pending)
        runs = sum(run.last - run.first + 1 for run in self.tracker.completed_runs())
        assert statistics.completed_beyond_base == runs

    @invariant()
    def parts_agree(self) -> None:
        self.tracker.check_integrity()


TestTracker = TrackerMachine.TestCase
