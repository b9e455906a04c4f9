"""The four pictures of a run, as one PNG: service by tenant, TTFT by class, queue by class, and the cost that classes
borrowed; of a live run, where borrowing can't be seen, what the time to the first token was spent on instead.

Knows run records and matplotlib. Does not know figures or reports. The same record gives the same bytes.
"""

from io import BytesIO
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from scheduling.priority import PriorityClass
from workers.runs.run_record import RequestRecord, RunRecord
from workers.runs.run_results import RequestTimes, split_of
from workers.runs.ttft_split import TTFT_STAGES, mean_split

__all__ = ["draw_run"]

_MOST_TENANTS = 12
"""Lines in the picture of service; the most served ones."""
_COLOURS = {
    PriorityClass.P0: "#c0392b",
    PriorityClass.P1: "#2471a3",
    PriorityClass.P2: "#1e8449",
    PriorityClass.P3: "#7d6608",
}


def draw_run(title: str, run: RunRecord, times: RequestTimes) -> bytes:
    figure = Figure(figsize=(12, 7.5), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    panels = figure.subplots(2, 2)
    seconds = np.arange(1, len(run.ticks.running) + 1) * run.ticks.interval_s
    _service(panels[0, 0], run, seconds)
    _ttft(panels[0, 1], times)
    _queue(panels[1, 0], run, seconds)
    if run.engine is None:
        _split(panels[1, 1], run)
    else:
        _borrowed(panels[1, 1], run, seconds)
    png = BytesIO()
    figure.savefig(png, format="png", metadata={"Software": None})
    return png.getvalue()


def _service(axes: Axes, run: RunRecord, seconds: NDArray[np.floating[Any]]) -> None:
    tenants = sorted({tenant for _, tenant in run.accounts})
    received = {
        tenant: run.ticks.service[:, [place for place, account in enumerate(run.accounts) if account[1] == tenant]].sum(
            axis=1
        )
        for tenant in tenants
    }
    shown = sorted(tenants, key=lambda tenant: (-int(received[tenant][-1:].sum()), tenant))[:_MOST_TENANTS]
    for tenant in shown:
        axes.plot(seconds, received[tenant], label=tenant, linewidth=1.2)
    more = len(tenants) - len(shown)
    axes.set_title("service received, by tenant" + (f" ({more} more not shown)" if more else ""))
    axes.set_xlabel("s")
    axes.set_ylabel("cost units")
    _legend(axes)


def _ttft(axes: Axes, times: RequestTimes) -> None:
    for priority in PriorityClass:
        ttft = np.sort(times.ttft[times.priority == priority])
        if len(ttft):
            axes.plot(
                np.maximum(ttft, 1e-4),
                np.arange(1, len(ttft) + 1) / len(ttft),
                label=f"{priority.label} ({len(ttft)})",
                color=_COLOURS[priority],
                linewidth=1.2,
            )
    axes.set_xscale("log")
    axes.set_ylim(0, 1)
    axes.set_title("time to first token, by class")
    axes.set_xlabel("s")
    axes.set_ylabel("part of the requests")
    _legend(axes)


def _queue(axes: Axes, run: RunRecord, seconds: NDArray[np.floating[Any]]) -> None:
    for priority in PriorityClass:
        if any(account[0] == priority for account in run.accounts):
            axes.plot(
                seconds, run.ticks.queued[:, priority], label=priority.label, color=_COLOURS[priority], linewidth=1.0
            )
    axes.plot(seconds, run.ticks.running, label="running", color="#555555", linewidth=0.8, linestyle=":")
    axes.set_title("requests waiting, by class")
    axes.set_xlabel("s")
    axes.set_ylabel("requests")
    _legend(axes)


def _borrowed(axes: Axes, run: RunRecord, seconds: NDArray[np.floating[Any]]) -> None:
    for priority in PriorityClass:
        if any(account[0] == priority for account in run.accounts):
            axes.plot(
                seconds, run.ticks.borrowed[:, priority], label=priority.label, color=_COLOURS[priority], linewidth=1.2
            )
    axes.set_title("cost run on others' rates, by class")
    axes.set_xlabel("s")
    axes.set_ylabel("cost units")
    _legend(axes)


def _split(axes: Axes, run: RunRecord) -> None:
    means = {
        priority: split
        for priority in PriorityClass
        if (split := mean_split(filter(None, (_split_in(run, record, priority) for record in run.requests))))
    }
    labels = [priority.label for priority in means]
    left = np.zeros(len(means))
    for stage in TTFT_STAGES:
        widths = np.array([split[stage] for split in means.values()])
        axes.barh(labels, widths, left=left, label=stage, height=0.6)
        left += widths
    axes.invert_yaxis()
    axes.set_title("mean time to first token, by what it was spent on")
    axes.set_xlabel("s")
    _legend(axes)


def _split_in(run: RunRecord, record: RequestRecord, priority: PriorityClass) -> dict[str, float] | None:
    return split_of(record, run.step_ends_s) if record.request.priority == priority else None


def _legend(axes: Axes) -> None:
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small", loc="best")
