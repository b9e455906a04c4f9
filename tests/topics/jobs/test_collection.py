"""A job collected: result files that have every row once, whatever came twice, late, or not at all."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topics.jobs.job_rig import JOB, WINDOW_MS, error, final, job, manifest, run, run_end
from topics.aiokafka_stretches import LoggedRecord
from topics.jobs.board import Job
from topics.jobs.collection import JobCollection
from topics.jobs.journal import RowJournal
from topics.jobs.result_files import write_results
from topics.jobs.row_set import RowSet
from topics.jobs.tally import LATE_MS, SETTLE_MS

NAMES = [f"row-{row}" for row in range(5)]


def collect(
    path: Path, ordered: Job, records: Sequence[LoggedRecord], *, now_ms: int = 0, in_order: bool = False
) -> tuple[list[Any], list[Any]]:
    """Output and error lines."""
    with RowJournal(path / "journal") as journal:
        collection = JobCollection(ordered, journal)
        for record in records:
            collection.take(record, dict(record.headers))
        collection.settle(now_ms)
        written = write_results(collection, path / "output", path / "errors", in_order=in_order)
    output, errors = (
        [orjson.loads(line) for line in (path / name).read_bytes().splitlines()] for name in ("output", "errors")
    )
    assert (len(output), len(errors)) == (written.output_lines, written.error_lines)
    return output, errors


def ids(lines: Sequence[Any]) -> list[str]:
    return [line["custom_id"] for line in lines]


def test_lines_are_openais(tmp_path: Path) -> None:
    records = [manifest(0, NAMES), final(1, 0), error(2, 1, code="model_not_found", status=404)]
    (done,), (refused,) = collect(tmp_path, job(5), records)
    assert done["id"] == f"batch_req_{JOB}~1~0"
    assert done["response"]["status_code"] == 200
    assert done["response"]["body"]["choices"][0]["message"]["content"] == "hi"
    assert done["error"] is None
    assert refused["response"]["status_code"] == 404
    assert refused["response"]["body"]["error"]["code"] == "model_not_found"
    assert refused["error"] is None


def test_rows_that_are_never_answered_are_named_too(tmp_path: Path) -> None:
    records = [manifest(0, NAMES), final(1, 3)]
    output, errors = collect(tmp_path, job(5), records, now_ms=WINDOW_MS + SETTLE_MS)
    assert ids(output) == ["row-3"]
    assert ids(errors) == ["row-0", "row-1", "row-2", "row-4"]
    assert {line["error"]["code"] for line in errors} == {"batch_expired"}
    assert all(line["response"] is None for line in errors)


def test_rows_that_a_cancel_ended_are_named_and_say_so(tmp_path: Path) -> None:
    records = [manifest(0, NAMES), final(1, 3), run_end(2, [1, 4]), error(3, 0, code="cancelled", status=499)]
    output, errors = collect(tmp_path, job(5), records, now_ms=1_000 + SETTLE_MS)
    assert ids(output) == ["row-3"]
    assert sorted(ids(errors)) == ["row-0", "row-1", "row-2", "row-4"]
    assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}


def test_an_announcement_that_nobody_can_read_is_passed_over(tmp_path: Path) -> None:
    broken = run_end(1, [1, 4], total=9)
    output, errors = collect(tmp_path, job(5), [manifest(0, NAMES), broken, final(2, 3)], now_ms=2_000 + SETTLE_MS)
    assert (ids(output), errors) == (["row-3"], [])


def test_partial_results_leave_out_what_is_pending(tmp_path: Path) -> None:
    output, errors = collect(tmp_path, job(5), [manifest(0, NAMES), final(1, 3)])
    assert (ids(output), ids(errors)) == (["row-3"], [])


@pytest.mark.parametrize(
    ("in_order", "expected"), [(False, ["row-4", "row-0", "row-2"]), (True, ["row-0", "row-2", "row-4"])]
)
def test_lines_come_as_they_were_decided_or_in_the_inputs_order(
    tmp_path: Path, in_order: bool, expected: list[str]
) -> None:
    records = [manifest(0, NAMES), final(1, 4), final(2, 0), final(3, 2)]
    output, _ = collect(tmp_path, job(5), records, in_order=in_order)
    assert ids(output) == expected


def test_a_resumed_row_that_expires_again_does_not_show_its_first_error(tmp_path: Path) -> None:
    again = run(2, begun_ms=200_000, rows=RowSet(5, [1]))
    records = [manifest(0, NAMES), *(final(1 + row, row) for row in (0, 2, 3, 4)), error(9, 1)]
    with RowJournal(tmp_path / "journal") as journal:
        collection = JobCollection(job(5), journal)
        for record in records:
            collection.take(record, dict(record.headers))
        collection.begin([run(), again])
        collection.settle(again.expires_at_ms + SETTLE_MS)
        lines = [orjson.loads(line) for _, line in collection.lines(in_order=True)]
    assert ids(lines) == NAMES
    assert lines[1]["error"]["code"] == "batch_expired"
    assert lines[1]["id"].endswith("~2~1")


@pytest.mark.parametrize("begun_anew", [False, True])
def test_a_late_answer_is_in_the_files_when_the_job_is_resumed(tmp_path: Path, begun_anew: bool) -> None:
    """Its line is in the journal already when it begins to count; until then the row has expired."""
    late_ms = WINDOW_MS + LATE_MS + 1
    records = [manifest(0, NAMES), *(final(1 + row, row) for row in (0, 2, 3))]
    records.append(final(5, 1, text="late", written_ms=late_ms))
    resumed = job(5, run(), run(2, begun_ms=200_000, rows=RowSet(5, [4]), answers_before=6))
    output, errors = collect(tmp_path, job(5), records, now_ms=WINDOW_MS + SETTLE_MS)
    assert (ids(output), ids(errors)) == (["row-0", "row-2", "row-3"], ["row-1", "row-4"])
    if begun_anew:
        (tmp_path / "journal").unlink()
    records.append(final(6, 4, number=2, written_ms=210_000))
    output, errors = collect(tmp_path, resumed, records, now_ms=210_000, in_order=True)
    assert (ids(output), errors) == (NAMES, [])
    assert output[1]["response"]["body"]["choices"][0]["message"]["content"] == "late"


@given(data=st.data())
def test_every_row_has_one_line_whatever_is_repeated_and_wherever_the_collector_is_killed(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Replies repeat (at least once), the journal loses its unsynced end, and the log is read again from there."""
    path = tmp_path_factory.mktemp("killed")
    answers = data.draw(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=15))
    cancelled = data.draw(st.sets(st.integers(0, 4)))
    end = data.draw(st.integers(0, len(answers)))
    log = [manifest(0, NAMES)]
    log += [(final if good else error)(1 + place, row) for place, (row, good) in enumerate(answers[:end])]
    log.append(run_end(1 + end, cancelled))
    log += [(final if good else error)(2 + place, row) for place, (row, good) in enumerate(answers[end:], start=end)]
    for _ in range(data.draw(st.integers(0, 3))):
        with RowJournal(path / "journal") as journal:
            collection = JobCollection(job(5), journal)
            for record in log[collection.next_offset : data.draw(st.integers(0, len(log)))]:
                collection.take(record, dict(record.headers))
        content = (path / "journal").read_bytes()
        (path / "journal").write_bytes(content[: data.draw(st.integers(0, len(content)))])
    output, errors = collect(path, job(5), log, now_ms=WINDOW_MS + SETTLE_MS)
    assert sorted(ids(output) + ids(errors)) == NAMES
    counted = answers[:end] + [(row, False) for row in cancelled] + answers[end:]
    first = dict(reversed(counted))
    assert sorted(ids(output)) == sorted(f"row-{row}" for row, good in first.items() if good)
