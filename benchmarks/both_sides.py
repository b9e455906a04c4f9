"""What a worker exported of a run beside what its clients measured: counts, tokens, mean times, quantiles.

    python -m benchmarks.both_sides results/results.json http://127.0.0.1:9090

Knows the results of one `headrace load` and Prometheus's queries. The worker must have done nothing else since its
start. Counts are equal, means agree within `TOLERANCE`, quantiles within one bucket of the histogram; what doesn't is
marked, and the exit code is 1. A client's time contains Kafka, both ways; a worker's begins when it has the record.
"""

import argparse
import json
import sys
import urllib.parse
import urllib.request
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.telemetry.metric import Metric
from workers.telemetry.metric_catalogue import REQUESTS, TOKENS
from workers.telemetry.metric_conventions import REQUEST_DURATION, TIME_TO_FIRST_TOKEN

TOLERANCE = 0.05
_QUANTILES = (50, 95)
_ANSWER_S = 30.0


@dataclass(frozen=True, slots=True)
class Row:
    label: str
    figure: str
    client: float
    worker: float
    agree: bool


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="results.json of headrace load")
    parser.add_argument("url", help="of Prometheus, such as http://127.0.0.1:9090")
    arguments = parser.parse_args()
    (run,) = json.loads(arguments.results.read_bytes())["runs"]
    rows = [row for label, group in run["by_class"].items() for row in _rows(arguments.url, label, group)]
    print("| class | | client | worker | |\n|---|---|---|---|---|")
    for row in rows:
        told = "" if not row.client else f"{row.worker / row.client - 1:+.1%}"
        print(
            f"| {row.label} | {row.figure} | {row.client:,.6g} | {row.worker:,.6g} | "
            f"{told}{'' if row.agree else ' **differs**'} |"
        )
    return 0 if all(row.agree for row in rows) else 1


def _rows(url: str, label: str, group: dict[str, Any]) -> Iterator[Row]:
    def total(name: str, **labels: str) -> float:
        chosen = ",".join(f'{key}="{value}"' for key, value in {"class": label, **labels}.items())
        return _value(url, f"sum({name}{{{chosen}}})")

    counts = (
        ("answers", group["completed"], total(REQUESTS.prometheus_name, outcome="completed")),
        ("prompt tokens", group["total_input_tokens"], total(TOKENS.prometheus_name, type="prompt")),
        ("output tokens", group["total_output_tokens"], total(TOKENS.prometheus_name, type="output")),
    )
    for figure, client, worker in counts:
        yield Row(label, figure, client, worker, client == worker)
    for figure, name, metric, labels in (
        ("TTFT", "ttft", TIME_TO_FIRST_TOKEN, {}),
        ("whole answer", "e2el", REQUEST_DURATION, {"error_type": ""}),
    ):
        base = metric.prometheus_name
        client = group[f"mean_{name}_ms"] / 1000
        worker = total(f"{base}_sum", **labels) / total(f"{base}_count", **labels)
        yield Row(label, f"{figure}, mean, s", client, worker, abs(worker / client - 1) <= TOLERANCE)
        percentiles = dict(group[f"percentiles_{name}_ms"])
        for quantile in _QUANTILES:
            client = percentiles[quantile] / 1000
            chosen = ",".join(f'{key}="{value}"' for key, value in {"class": label, **labels}.items())
            worker = _value(url, f"histogram_quantile({quantile / 100}, sum by (le) ({base}_bucket{{{chosen}}}))")
            near = abs(_bucket(metric, client) - _bucket(metric, worker)) <= 1
            yield Row(label, f"{figure}, p{quantile}, s", client, worker, near)


def _bucket(metric: Metric, seconds: float) -> int:
    return bisect_left(metric.bounds, seconds)


def _value(url: str, query: str) -> float:
    with urllib.request.urlopen(
        f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}", timeout=_ANSWER_S
    ) as answer:
        found = json.load(answer)["data"]["result"]
    if len(found) != 1:
        raise SystemExit(f"{query}: {len(found)} values rather than one; has the worker been scraped since?")
    return float(found[0]["value"][1])


if __name__ == "__main__":
    sys.exit(main())
