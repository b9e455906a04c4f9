"""The check of a whole input before anything of it is sent.

Knows what is to be told of an input: its rows' names, its problems, its size. Does not know what makes a row a good one
(`topics.jobs.rows`) or what is done with it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from topics.jobs.input_file import InputFile
from topics.jobs.row_set import RowSet
from topics.jobs.rows import MAX_ROWS, BatchRow, RowChecker, RowProblem

__all__ = ["CheckedInput", "InvalidInputError", "check_input"]

_SHOWN_PROBLEMS = 100
_REPORT_ROWS = 1_000
_KEPT_BYTES = 32 * 2**20
"""Of bodies. Reading the rows once more would take as long as sending them."""


@dataclass(frozen=True, slots=True)
class CheckedInput:
    rows: int
    endpoint: str | None
    custom_ids: list[str]
    """In the order of the rows; a stand-in for a row without its own."""
    problems: list[RowProblem]
    body_bytes: int
    requested_tokens: int
    unlimited_rows: int
    good: RowSet
    kept: list[BatchRow | RowProblem] | None
    """All rows, for who sends them now; None where their bodies are too many bytes to be held."""

    @property
    def first_problems(self) -> list[RowProblem]:
        """As many as are kept and shown."""
        return self.problems[:_SHOWN_PROBLEMS]


class InvalidInputError(Exception):
    """The input has rows that can't be sent. `problems` are the first of `count`."""

    def __init__(self, checked: CheckedInput) -> None:
        self.problems = checked.first_problems
        self.count = len(checked.problems)
        super().__init__(f"{self.count:,} of {checked.rows:,} rows can't be sent")


def check_input(file: InputFile, on_rows: Callable[[int], None] = lambda _: None) -> CheckedInput:
    """Check every row (blocks; bodies beyond a bound are not held in memory). `on_rows` is told how many are done.

    Raises `TooManyRowsError`, `OSError`.
    """
    checker = RowChecker()
    custom_ids: list[str] = []
    problems: list[RowProblem] = []
    good = RowSet(MAX_ROWS)
    kept: list[BatchRow | RowProblem] | None = []
    for row in checker.check_all(file.lines()):
        if kept is not None:
            kept.append(row)
            if checker.body_bytes > _KEPT_BYTES:
                kept = None
        custom_ids.append(row.custom_id)
        if isinstance(row, RowProblem):
            problems.append(row)
        else:
            good.add(row.row)
        if checker.rows % _REPORT_ROWS == 0:
            on_rows(checker.rows)
    on_rows(checker.rows)
    return CheckedInput(
        rows=checker.rows,
        endpoint=checker.endpoint,
        custom_ids=custom_ids,
        problems=problems,
        body_bytes=checker.body_bytes,
        requested_tokens=checker.requested_tokens,
        unlimited_rows=checker.unlimited_rows,
        good=good,
        kept=kept,
    )
