"""Bars for the work on a job: what needs rich, which takes longer to load than a status to answer.

Not a command itself.
"""

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from topics.jobs.state import Standing

__all__ = ["answered_bar", "progress", "stderr"]

_RATE_WINDOW_S = 30.0


def stderr() -> Console:
    return Console(stderr=True, highlight=False)


class _RateColumn(ProgressColumn):
    """Rows a second, over the last half minute."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.1f} rows/s" if speed < 100 else f"{speed:,.0f} rows/s")


def progress(console: Console) -> Progress:
    """Bars with rate and time left. Where there is no terminal, only their end is printed."""
    return Progress(
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        _RateColumn(),
        TimeRemainingColumn(),
        console=console,
        speed_estimate_period=_RATE_WINDOW_S,
        refresh_per_second=4,
    )


def answered_bar(bars: Progress) -> Callable[[Standing], None]:
    """A bar of the rows that have their fate."""
    bar = bars.add_task("answered", total=None)

    def show(standing: Standing) -> None:
        bars.update(bar, total=standing.total or None, completed=standing.total - standing.pending)

    return show
