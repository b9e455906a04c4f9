"""One trace as a picture, out of a running Jaeger: for a page, where its pages are not to be had.

    python -m benchmarks.trace_picture http://127.0.0.1:16686 TRACE_ID --out docs/trace.png

Knows the JSON of Jaeger's query service (`/api/traces/ID`): spans, references, logs. Needs matplotlib. A span is a bar;
what the scheduler noted on it stands beside it.
"""

import argparse
import json
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_ANSWER_S = 30.0
_ROW_INCHES = 0.3
_INDENT = "    "
_SHOWN = (
    "headrace.dispatch.reason",
    "headrace.dispatch.victims",
    "headrace.dispatch.passed",
    "headrace.suspension.swapped",
    "headrace.attempt",
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.output_tokens",
    "gen_ai.response.finish_reasons",
)
"""Attributes, or what they begin with; the last words of each name are written."""


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    depth: int
    service: str
    start_s: float
    """From the trace's beginning."""
    duration_s: float
    events_s: list[float]
    notes: list[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of Jaeger's query service, such as http://127.0.0.1:16686")
    parser.add_argument("trace", help="32 hexadecimal digits")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with urllib.request.urlopen(f"{arguments.url}/api/traces/{arguments.trace}", timeout=_ANSWER_S) as answer:
        (trace,) = json.load(answer)["data"]
    bars = list(_bars(trace))
    figure = Figure(figsize=(13, 0.9 + _ROW_INCHES * len(bars)), dpi=90)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.16, 0.55 / figure.get_figheight(), 0.4, 1 - 0.9 / figure.get_figheight()))
    _draw(axes, bars)
    axes.set_title(f"trace {trace['traceID']}: {len(bars)} spans", fontsize=10, loc="left")
    figure.savefig(arguments.out, format="png", metadata={"Software": None})


def _bars(trace: dict[str, Any]) -> Iterator[Bar]:
    """Parents before children, children by start. A span whose parent is not among them stands at the top."""
    known = {span["spanID"] for span in trace["spans"]}
    children: dict[str | None, list[dict[str, Any]]] = defaultdict(list)
    for span in sorted(trace["spans"], key=lambda span: (span["startTime"], span["duration"])):
        parents = [one["spanID"] for one in span["references"] if one["refType"] == "CHILD_OF"]
        children[next((parent for parent in parents if parent in known), None)].append(span)
    origin_us = min(span["startTime"] for span in trace["spans"])

    def under(parent: str | None, depth: int) -> Iterator[Bar]:
        for span in children[parent]:
            service = trace["processes"][span["processID"]]["serviceName"]
            yield Bar(
                span["operationName"],
                depth,
                service,
                (span["startTime"] - origin_us) / 1e6,
                span["duration"] / 1e6,
                [(log["timestamp"] - origin_us) / 1e6 for log in span["logs"]],
                [*_notes(span["tags"]), *(_event(log["fields"]) for log in span["logs"])],
            )
            yield from under(span["spanID"], depth + 1)

    return under(None, 0)


def _event(fields: list[dict[str, Any]]) -> str:
    names = [str(field["value"]) for field in fields if field["key"] == "event"]
    return ": ".join([*names, ", ".join(_notes(fields))])


def _notes(tags: list[dict[str, Any]]) -> list[str]:
    by_name = {tag["key"]: tag["value"] for tag in tags}
    return [
        f"{name.partition('.')[2].partition('.')[2] or name.partition('.')[2]} {by_name[name]}"
        for name in by_name
        if name.startswith(_SHOWN)
    ]


def _draw(axes: Axes, bars: list[Bar]) -> None:
    """Names on the left, bars, what there is to say of each on the right."""
    services = sorted({bar.service for bar in bars})
    for row, bar in enumerate(bars):
        colour = f"C{services.index(bar.service)}"
        axes.barh(row, bar.duration_s, left=bar.start_s, height=0.6, color=colour, edgecolor=colour, linewidth=1)
        axes.plot(bar.events_s, [row] * len(bar.events_s), "k|", markersize=11)
        right = axes.get_yaxis_transform()
        axes.text(1.02, row, _duration(bar.duration_s), fontsize=8, va="center", transform=right)
        axes.text(1.14, row, ", ".join(bar.notes), fontsize=8, va="center", transform=right)
        axes.text(-0.39, row, f"{_INDENT * bar.depth}{bar.name}", fontsize=8, va="center", transform=right)
    axes.set_yticks([])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel("seconds", fontsize=8)
    axes.grid(axis="x", alpha=0.25)
    for number, service in enumerate(services):
        axes.barh(0, 0, color=f"C{number}", label=service)
    axes.legend(fontsize=8, loc="lower left")


def _duration(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{seconds * 1000:,.1f} ms"


if __name__ == "__main__":
    main()
