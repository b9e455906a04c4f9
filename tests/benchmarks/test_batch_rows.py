"""The stories' input: bad rows of ten kinds that the check of an input names, among rows that are right."""

from pathlib import Path

import orjson

from benchmarks.batch_format import INPUT_LINE, schema_of
from benchmarks.batch_rows import BAD_KINDS, write_rows
from topics.jobs.checked_input import check_input
from topics.jobs.input_file import open_input

ROWS, BAD = 200, 20


def test_each_bad_kind_is_refused_and_nothing_else(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", ROWS, BAD)
    with open_input(str(tmp_path / "rows.jsonl"), None) as file:
        checked = check_input(file)
    assert checked.rows == ROWS
    only_a_worker_knows = BAD // len(BAD_KINDS)  # how long the context is
    assert len(checked.problems) == BAD - only_a_worker_knows
    lines = (tmp_path / "rows.jsonl").read_bytes().splitlines()
    right = [lines[row] for row in range(ROWS) if row in checked.good]
    assert len(right) == ROWS - len(checked.problems)
    for line in right:
        schema_of(INPUT_LINE).validate(orjson.loads(line))


def test_the_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_rows(tmp_path / name, ROWS, BAD)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
