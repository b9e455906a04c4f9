"""What `simulate` and `load` give out of their runs: results.json, report.html, and a table.

Knows files and the terminal. Not a command itself.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from workers.runs.run_report import ReportRun, comparison, html_report

__all__ = ["write_runs"]

_PIPE_COLUMNS = 180


def write_runs(
    out: Path | None,
    settings: dict[str, Any],
    shown: Sequence[ReportRun],
    results: dict[str, Any],
    *,
    title: str,
    as_json: bool,
) -> None:
    """`results`: what results.json holds beside the settings. `out`: a folder that is there, or None."""
    encoded = orjson.dumps({"settings": settings, **results}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    if out is not None:
        (out / "results.json").write_bytes(encoded)
        (out / "report.html").write_text(html_report(settings, shown), encoding="utf-8")
    if as_json:
        sys.stdout.buffer.write(encoded)
        return
    headings, rows = comparison(shown)
    table = Table(title=title)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < 2 else "right")
    for row in rows:
        table.add_row(*row)
    # Into a pipe or a file as wide as it needs; a terminal wraps what doesn't fit.
    (Console() if sys.stdout.isatty() else Console(width=_PIPE_COLUMNS)).print(table)
    if out is not None:
        print(f"{out / 'report.html'}, results.json and a CSV for each run")
