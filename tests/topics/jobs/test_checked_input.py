"""An input checked as a whole: what is kept of it for who sends its rows."""

import os
from pathlib import Path

import orjson
import pytest

from topics.jobs import checked_input
from topics.jobs.checked_input import check_input
from topics.jobs.input_file import open_input
from topics.jobs.rows import RowChecker


def write_rows(path: Path, rows: int, bad: int) -> str:
    with path.open("wb") as file:
        for row in range(rows):
            body = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": f"é {row}"}]}
            line = {"custom_id": f"r{row}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(b"{\n" if row == bad else orjson.dumps(line) + b"\n\n")
    return str(path)


def test_the_rows_that_are_kept_are_those_that_a_second_reading_finds(tmp_path: Path) -> None:
    with open_input(write_rows(tmp_path / "rows.jsonl", 5, bad=2)) as file:
        checked = check_input(file)
        assert checked.kept == list(RowChecker().check_all(file.lines(), checked.good))
    assert [row.row for row in checked.kept] == [*range(5)]
    assert [problem.row for problem in checked.problems] == [2]


def test_bodies_beyond_the_bound_are_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_input, "_KEPT_BYTES", 200)
    with open_input(write_rows(tmp_path / "rows.jsonl", 5, bad=2)) as file:
        checked = check_input(file)
    assert checked.kept is None
    assert (checked.rows, len(checked.good)) == (5, 4)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux")
def test_held_rows_take_about_their_own_size(tmp_path: Path) -> None:
    """What a library sets aside for a longer text must not be held with each of them."""
    with open_input(write_rows(tmp_path / "rows.jsonl", 10_000, bad=2)) as file:
        before = resident_bytes()
        checked = check_input(file)
        grown = resident_bytes() - before
    assert checked.kept is not None
    assert grown < 10_000 * 2_000
