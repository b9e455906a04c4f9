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
_NOTES = ("headrace.dispatch", "headrace.suspension.swapped", "gen_ai.usage", "messaging.kafka.offset")
"""Prefixes of the attributes that are shown."""


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    depth: int
    service: str
    start_ms: float
    """From the trace's beginning."""
    duration_ms: float
    events_ms: list[float]
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
    figure = Figure(figsize=(13, 0.8 + _ROW_INCHES * len(bars)), dpi=90, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw(axes, bars)
    axes.set_title(f"trace {trace['traceID']}, {len(bars)} spans", fontsize=10, loc="left")
    figure.savefig(arguments.out, format="png", metadata={"Software": None})


def _bars(trace: dict[str, Any]) -> Iterator[Bar]:
    """Parents before children, children by start. A span whose parent is not among them stands at the top."""
    known = {span["spanID"] for span in trace["spans"]}
    children: dict[str | None, list[dict[str, Any]]] = defaultdict(list)
    for span in sorted(trace["spans"], key=lambda span: span["startTime"]):
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
                (span["startTime"] - origin_us) / 1000,
                span["duration"] / 1000,
                [(log["timestamp"] - origin_us) / 1000 for log in span["logs"]],
                [*_notes(span["tags"]), *(note for log in span["logs"] for note in _event(log["fields"]))],
            )
            yield from under(span["spanID"], depth + 1)

    return under(None, 0)


def _event(fields: list[dict[str, Any]]) -> Iterator[str]:
    yield from (str(field["value"]) for field in fields if field["key"] == "event")
    yield from _notes(fields)


def _notes(tags: list[dict[str, Any]]) -> list[str]:
    return [
        f"{tag['key'].removeprefix('headrace.').removeprefix('gen_ai.')}={tag['value']}"
        for tag in tags
        if tag["key"].startswith(_NOTES)
    ]


def _draw(axes: Axes, bars: list[Bar]) -> None:
    end_ms = max(bar.start_ms + bar.duration_ms for bar in bars)
    services = sorted({bar.service for bar in bars})
    for row, bar in enumerate(bars):
        colour = f"C{services.index(bar.service)}"
        axes.barh(row, bar.duration_ms, left=bar.start_ms, height=0.6, color=colour, alpha=0.75)
        axes.plot(bar.events_ms, [row] * len(bar.events_ms), "k|", markersize=11)
        told = f"{bar.duration_ms:,.1f} ms  {', '.join(bar.notes)}"
        early = bar.start_ms + bar.duration_ms < 0.4 * end_ms
        place_ms = bar.start_ms + bar.duration_ms if early else bar.start_ms
        axes.text(place_ms + 0.005 * end_ms, row, told, fontsize=8, va="center")
    axes.set_yticks(range(len(bars)), [f"{_INDENT * bar.depth}{bar.name}" for bar in bars], fontsize=8)
    for label in axes.get_yticklabels():
        label.set_horizontalalignment("left")
    axes.tick_params(axis="y", pad=200, length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, end_ms * 1.02)
    axes.set_xlabel("milliseconds since the producer's call", fontsize=8)
    axes.grid(axis="x", alpha=0.25)
    for number, service in enumerate(services):
        axes.barh(0, 0, color=f"C{number}", alpha=0.75, label=service)
    axes.legend(fontsize=8, loc="lower left")


if __name__ == "__main__":
    main()
