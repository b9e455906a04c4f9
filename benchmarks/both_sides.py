"""What a worker exported of a run beside what its clients measured: counts, tokens, mean times, quantiles.

    python -m benchmarks.both_sides results/results.json http://127.0.0.1:9090

Knows the results of one `headrace load` and Prometheus's queries. The worker must have done nothing else since its
start. Counts are equal, means agree within `TOLERANCE`, quantiles within one bucket of the histogram; what doesn't is
marked, and the exit code is 1.

The time to the first token is compared twice. A reader's ends with the first delta, and so does the worker's metric of
that name, which begins with the record's time stamp: what lies between them is the record's way to the broker and the
delta's from it. The engine's own begins when the worker has the record and ends with the token: it is compared with the
client's without transport and ingress (`ttft_split`).
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
from workers.telemetry.metric_catalogue import FIRST_DELTA_TIME, REQUESTS, TOKENS
from workers.telemetry.metric_conventions import REQUEST_DURATION, TIME_TO_FIRST_TOKEN

TOLERANCE = 0.05
_PERCENTILES = (50, 95)
_KAFKA = ("transport", "ingress")
_ANSWER_S = 30.0


@dataclass(frozen=True, slots=True)
class Row:
    label: str
    figure: str
    client: float
    worker: float
    distance: str
    agree: bool = True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="results.json of headrace load")
    parser.add_argument("url", help="of Prometheus, such as http://127.0.0.1:9090")
    arguments = parser.parse_args()
    (run,) = json.loads(arguments.results.read_bytes())["runs"]
    rows = [row for label, group in run["by_class"].items() for row in _rows(arguments.url, label, group)]
    print("| class | | client | worker | |\n|---|---|---|---|---|")
    for row in rows:
        verdict = row.distance if row.agree else f"{row.distance} **differs**"
        print(f"| {row.label} | {row.figure} | {row.client:,.6g} | {row.worker:,.6g} | {verdict} |")
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
        yield Row(label, figure, client, worker, "equal" if client == worker else "", agree=client == worker)
    split = group["mean_ttft_split_ms"]
    kafka_s = sum(split[stage] for stage in _KAFKA) / 1000
    ttft_s, first, token = (
        group["mean_ttft_ms"] / 1000,
        FIRST_DELTA_TIME.prometheus_name,
        TIME_TO_FIRST_TOKEN.prometheus_name,
    )
    yield _mean(label, "first delta, mean, s", ttft_s, total(f"{first}_sum") / total(f"{first}_count"))
    worker_s = total(f"{token}_sum") / total(f"{token}_count")
    yield _mean(label, "first token without Kafka, mean, s", ttft_s - kafka_s, worker_s)
    whole = REQUEST_DURATION.prometheus_name
    worker_s = total(f"{whole}_sum", error_type="") / total(f"{whole}_count", error_type="")
    yield _mean(label, "whole answer, mean, s", group["mean_e2el_ms"] / 1000, worker_s)
    yield from _quantiles(url, label, "first delta", FIRST_DELTA_TIME, "", group["percentiles_ttft_ms"])
    chosen = ',error_type=""'
    yield from _quantiles(url, label, "whole answer", REQUEST_DURATION, chosen, group["percentiles_e2el_ms"])


def _mean(label: str, figure: str, client_s: float, worker_s: float) -> Row:
    agree = abs(worker_s / client_s - 1) <= TOLERANCE
    return Row(label, figure, client_s, worker_s, _relative(client_s, worker_s), agree)


def _relative(client: float, worker: float) -> str:
    return f"{worker / client - 1:+.1%}"


def _quantiles(
    url: str, label: str, figure: str, metric: Metric, chosen: str, percentiles_ms: list[list[float]]
) -> Iterator[Row]:
    buckets = f'{metric.prometheus_name}_bucket{{class="{label}"{chosen}}}'
    of_client = {int(percentile): ms / 1000 for percentile, ms in percentiles_ms}
    for percentile in _PERCENTILES:
        client_s = of_client[percentile]
        worker_s = _value(url, f"histogram_quantile({percentile / 100}, sum by (le) ({buckets}))")
        apart = abs(_bucket(metric, client_s) - _bucket(metric, worker_s))
        distance = f"{apart} bucket{'' if apart == 1 else 's'} apart" if apart else "the same bucket"
        yield Row(label, f"{figure}, p{percentile}, s", client_s, worker_s, distance, apart <= 1)


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
