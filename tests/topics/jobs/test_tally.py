"""Which reply decides a row."""

from hypothesis import given
from hypothesis import strategies as st

from tests.topics.jobs.job_rig import WINDOW_MS, error, final, record, run
from topics.aiokafka_stretches import LoggedRecord
from topics.jobs.reply import Fate, RowReply
from topics.jobs.row_set import RowSet
from topics.jobs.tally import LATE_MS, SETTLE_MS, JobTally, Taken

END = 1_000
"""An offset behind all replies of these tests."""
LATE = WINDOW_MS + LATE_MS + 1


def taken(tally: JobTally, logged: LoggedRecord) -> Taken:
    reply = RowReply.of(dict(logged.headers), logged.value)
    assert reply is not None
    return tally.take(reply, logged.offset, logged.timestamp)


def take(tally: JobTally, logged: LoggedRecord) -> bool:
    """Whether it decides its row."""
    return taken(tally, logged) is Taken.DECIDED


def test_the_first_reply_decides() -> None:
    tally = JobTally(3, [run()])
    assert take(tally, error(0, 1))
    assert not take(tally, final(1, 1))
    assert tally.fate_of(1) is Fate.FAILED


def test_a_late_reply_does_not_count_and_its_row_expires() -> None:
    tally = JobTally(2, [run()])
    assert take(tally, final(0, 0, written_ms=WINDOW_MS + LATE_MS))
    assert not take(tally, final(1, 1, written_ms=WINDOW_MS + LATE_MS + 1))
    tally.settle(END, WINDOW_MS + SETTLE_MS - 1)
    assert tally.fate_of(1) is Fate.PENDING
    tally.settle(END, WINDOW_MS + SETTLE_MS)
    assert tally.fate_of(1) is Fate.EXPIRED


def test_a_late_answer_counts_when_a_further_run_begins_behind_it() -> None:
    tally = JobTally(4, [run()])
    take(tally, final(0, 0))
    assert taken(tally, final(1, 1, written_ms=LATE)) is Taken.HELD
    assert taken(tally, error(2, 2, written_ms=LATE)) is Taken.HELD
    tally.settle(END, WINDOW_MS + SETTLE_MS)
    assert tally.in_fate(Fate.EXPIRED) == [1, 2, 3], "what was handed out does not change"
    tally.begin(run(2, begun_ms=100_000, rows=RowSet(4, [3]), answers_before=3))
    assert [tally.fate_of(row) for row in range(4)] == [
        *(Fate.COMPLETED, Fate.COMPLETED),
        *(Fate.FAILED, Fate.PENDING),
    ]
    assert tally.statistics().usage.prompt_tokens == 6
    assert take(tally, final(4, 3, number=2, written_ms=110_000))
    assert not take(tally, final(5, 3, written_ms=110_000)), "the former run's answer came behind the new one's begin"
    tally.check_integrity()


def test_a_late_answer_behind_the_further_runs_begin_waits_for_the_next_one() -> None:
    tally = JobTally(2, [run(), run(2, begun_ms=100_000, rows=RowSet(2, [0]), answers_before=3)])
    assert taken(tally, final(3, 1, written_ms=LATE)) is Taken.HELD
    tally.settle(END, 100_000 + WINDOW_MS + SETTLE_MS)
    assert tally.fate_of(1) is Fate.EXPIRED
    tally.begin(run(3, begun_ms=300_000, rows=RowSet(2, [0]), answers_before=4))
    assert tally.fate_of(1) is Fate.COMPLETED


def test_a_run_is_not_over_before_the_answers_that_it_counts_were_read() -> None:
    """A collector that hears of a resumed job has perhaps not read on to where that job's late answers stand."""
    tally = JobTally(2, [run()])
    take(tally, final(0, 0))
    tally.settle(1, WINDOW_MS + SETTLE_MS)
    tally.begin(run(2, begun_ms=100_000, rows=RowSet(2), answers_before=3))
    tally.settle(2, 200_000)
    assert tally.fate_of(1) is Fate.PENDING
    assert take(tally, final(2, 1, written_ms=LATE))
    tally.settle(3, 200_000)
    assert tally.fate_of(1) is Fate.COMPLETED


def test_rows_of_which_nothing_was_heard_may_still_run() -> None:
    tally = JobTally(5, [run()])
    take(tally, final(0, 0))
    take(tally, error(1, 1, code="expired", status=504))
    taken(tally, error(2, 2, code="cancelled", status=499, written_ms=LATE))
    tally.cancel(1, RowSet(5, [3]), WINDOW_MS)
    tally.settle(END, WINDOW_MS + SETTLE_MS)
    assert tally.silent() == [4], "row 3 was never sent"


def test_a_worker_that_says_expired_or_cancelled_did_not_answer() -> None:
    tally = JobTally(2, [run()])
    take(tally, error(0, 0, code="expired", status=504))
    take(tally, error(1, 1, code="cancelled", status=499))
    assert (tally.fate_of(0), tally.fate_of(1)) == (Fate.EXPIRED, Fate.CANCELLED)


def test_the_last_run_of_a_row_decides_it() -> None:
    again = run(2, begun_ms=100_000, rows=RowSet(3, [1]))
    tally = JobTally(3, [run(), again])
    assert take(tally, final(0, 0))
    assert not take(tally, error(1, 1)), "this row is run 2's now"
    assert take(tally, final(2, 1, number=2, written_ms=110_000))
    assert not take(tally, final(3, 2, number=2, written_ms=110_000)), "run 2 has no such row"
    tally.settle(END, WINDOW_MS + SETTLE_MS)
    assert [tally.fate_of(row) for row in range(3)] == [Fate.COMPLETED, Fate.COMPLETED, Fate.EXPIRED]


def test_a_cancel_ends_the_rows_that_were_not_sent_and_closes_the_window_for_the_others() -> None:
    tally = JobTally(4, [run()])
    take(tally, final(0, 0))
    assert tally.cancel(1, RowSet(4, [3]), 2_000)
    assert tally.fate_of(3) is Fate.CANCELLED
    assert take(tally, final(1, 1, written_ms=2_000 + LATE_MS))
    assert not take(tally, final(2, 2, written_ms=2_000 + LATE_MS + 1))
    assert taken(tally, final(3, 3, written_ms=2_000)) is Taken.HELD, "a sender that was gone had sent it all the same"
    tally.settle(END, 2_000 + SETTLE_MS - 1)
    assert tally.fate_of(2) is Fate.PENDING
    tally.settle(END, 2_000 + SETTLE_MS)
    assert [tally.fate_of(row) for row in range(4)] == [
        *(Fate.COMPLETED, Fate.COMPLETED),
        *(Fate.CANCELLED, Fate.CANCELLED),
    ]
    tally.check_integrity()


def test_a_cancel_of_a_run_leaves_the_next_one_alone() -> None:
    again = run(2, begun_ms=100_000, rows=RowSet(2, [1]))
    tally = JobTally(2, [run(), again])
    tally.cancel(1, RowSet(2, [1]), 2_000)
    assert take(tally, final(0, 1, number=2, written_ms=110_000))
    assert tally.fate_of(1) is Fate.COMPLETED


def test_a_cancel_that_comes_after_the_window_changes_nothing() -> None:
    tally = JobTally(2, [run()])
    assert not tally.cancel(1, RowSet(2, [1]), WINDOW_MS + LATE_MS + 1)
    tally.settle(END, WINDOW_MS + SETTLE_MS)
    assert tally.fate_of(1) is Fate.EXPIRED


def test_a_cancel_that_is_said_twice_counts_from_the_first() -> None:
    tally = JobTally(2, [run()])
    assert tally.cancel(1, RowSet(2), 2_000)
    assert not tally.cancel(1, RowSet(2), 3_000)
    assert not take(tally, final(0, 1, written_ms=2_000 + LATE_MS + 1))


def test_a_row_that_the_job_does_not_have_is_nobodys() -> None:
    assert not take(JobTally(3, [run()]), final(0, 3))


def test_a_reply_that_nobody_can_read_fails_its_row() -> None:
    tally = JobTally(1, [run()])
    assert take(tally, record(0, dict(final(0, 0).headers), b"{"))
    assert tally.fate_of(0) is Fate.FAILED


def test_usage_counts_each_row_once() -> None:
    tally = JobTally(2, [run()])
    for reply in (final(0, 0), final(1, 0), final(2, 1)):
        take(tally, reply)
    usage = tally.statistics().usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (6, 4, 2)


REPLIES = st.lists(
    st.builds(
        lambda row, number, good, written_ms: (final if good else error)(0, row, number=number, written_ms=written_ms),
        row=st.integers(0, 6),
        number=st.integers(1, 3),
        good=st.booleans(),
        written_ms=st.integers(0, 2 * WINDOW_MS),
    ),
    max_size=40,
)
RERUNS = st.lists(st.tuples(st.sets(st.integers(0, 4)), st.integers(0, 40)), max_size=2)
"""Rows of a further run, and its `answers_before`."""


@given(replies=REPLIES, reruns=RERUNS)
def test_fates_add_up_and_do_not_depend_on_when_runs_are_learnt_of(
    replies: list[LoggedRecord], reruns: list[tuple[set[int], int]]
) -> None:
    """A collector that learns of the runs one by one decides like one that reads everything afterwards."""
    runs = [run()]
    for rows, offset in reruns:
        before = max(offset, runs[-1].answers_before)
        runs.append(run(len(runs) + 1, begun_ms=0, rows=RowSet(5, rows), answers_before=before))
    at_once, in_turn = JobTally(5, runs), JobTally(5, runs[:1])
    for offset, logged in enumerate(replies):
        reply = RowReply.of(dict(logged.headers), logged.value)
        assert reply is not None
        at_once.take(reply, offset, logged.timestamp)
        while in_turn.last_run < min(reply.id.run, len(runs)):
            in_turn.begin(runs[in_turn.last_run])
        in_turn.take(reply, offset, logged.timestamp)
    for later in runs[in_turn.last_run :]:
        in_turn.begin(later)
    for tally in (at_once, in_turn):
        tally.settle(END, WINDOW_MS + SETTLE_MS)
        tally.check_integrity()
        assert Fate.PENDING not in {tally.fate_of(row) for row in range(5)}
    replied_early = {row for rows, _ in reruns for row in rows}
    for row in set(range(5)) - replied_early:
        assert at_once.fate_of(row) is in_turn.fate_of(row)
