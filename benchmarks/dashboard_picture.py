"""The dashboard's panels as one picture, out of a running Prometheus: for a page, where Grafana is not to be had.

    python -m benchmarks.dashboard_picture URL --minutes 5 --out docs/dashboard.png

Knows the panels (`workers.telemetry.dashboard`) and Prometheus's range queries. Needs matplotlib.
"""

import argparse
import json
import re
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from workers.telemetry.dashboard import ROWS, Panel

_COLUMNS = 3
_STEP_S = 2
_RATE_OVER = "30s"
_UNITS = {"s": " (s)", "percentunit": " (1: all)"}
_ANSWER_S = 30.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of Prometheus, such as http://127.0.0.1:9090")
    parser.add_argument("--minutes", type=float, default=5.0, help="until now (5)")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    end_s = time.time()
    start_s = end_s - arguments.minutes * 60
    panels = [panel for _, row in ROWS for panel in row]
    rows = -(-len(panels) // _COLUMNS)
    figure = Figure(figsize=(5 * _COLUMNS, 2.5 * rows), dpi=80, layout="constrained")
    FigureCanvasAgg(figure)
    for place, panel in enumerate(panels):
        axes = figure.add_subplot(rows, _COLUMNS, place + 1)
        axes.set_title(f"{panel.title}{_UNITS.get(panel.unit, '')}", fontsize=10)
        for legend, times, values in _series(arguments.url, panel, start_s, end_s):
            axes.plot(times, values, label=legend, linewidth=1.1)
        axes.grid(alpha=0.25)
        axes.set_xlim(0, end_s - start_s)
        if axes.lines:
            axes.legend(fontsize=7, loc="best")
    figure.savefig(arguments.out, format="png", metadata={"Software": None})


def _series(url: str, panel: Panel, start_s: float, end_s: float) -> list[tuple[str, list[float], list[float]]]:
    found = []
    for expression, legend in panel.queries:
        asked = {"query": expression.replace("$__rate_interval", _RATE_OVER), "start": start_s, "end": end_s}
        query = urllib.parse.urlencode({**asked, "step": _STEP_S})
        with urllib.request.urlopen(f"{url}/api/v1/query_range?{query}", timeout=_ANSWER_S) as answer:
            results: list[Any] = json.load(answer)["data"]["result"]
        for result in results:
            points = [(float(at) - start_s, float(value)) for at, value in result["values"]]
            found.append((_name(legend, result["metric"]), [at for at, _ in points], [value for _, value in points]))
    return found


def _name(legend: str, labels: dict[str, str]) -> str:
    """As Grafana fills it in: a label that a series lacks is empty."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), legend).strip()


if __name__ == "__main__":
    main()
