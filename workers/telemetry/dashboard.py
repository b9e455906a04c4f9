"""The Grafana dashboard of the local stack.

    python -m workers.telemetry.dashboard > deploy/grafana/dashboards/headrace.json

Knows which question each panel answers and the query for it, and Grafana's JSON. What the metrics mean stands in
`docs/metrics.md`; a test holds every query to the catalogue.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["ROWS", "Panel", "dashboard"]

_SOURCE = {"type": "prometheus", "uid": "prometheus"}
_COLUMNS, _WIDTH, _HEIGHT = 3, 8, 7


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    meaning: str
    queries: tuple[tuple[str, str], ...]
    """(PromQL, legend)."""
    unit: str = "short"
    """Grafana's name of it."""
    stacked: bool = False


def _rate(series: str, by: str, legend: str | None = None) -> tuple[str, str]:
    return f"sum by ({by}) (rate({series}[$__rate_interval]))", legend or f"{{{{{by}}}}}"


def _quantile(part: float, histogram: str, by: str = "class") -> tuple[str, str]:
    grouped = f"le, {by}" if by else "le"
    rates = f"sum by ({grouped}) (rate({histogram}_bucket[$__rate_interval]))"
    return f"histogram_quantile({part}, {rates})", f"{{{{{by}}}}}" if by else f"p{part * 100:g}"


def _last(series: str, by: str) -> tuple[str, str]:
    labels = by.split(", ")
    return f"sum by ({by}) ({series})", " ".join(f"{{{{{label}}}}}" for label in labels)


_TTFT = "gen_ai_server_time_to_first_token_seconds"

ROWS: Sequence[tuple[str, Sequence[Panel]]] = (
    (
        "Who waits, and for what",
        (
            Panel(
                "Waiting requests",
                "By service class. This, and their cost, is what to scale on; not Kafka's lag.",
                (_last("headrace_queue_depth", "class"),),
                stacked=True,
            ),
            Panel(
                "Oldest request",
                "How long the one that waits longest has waited.",
                (("max by (class) (headrace_queue_oldest_age_seconds)", "{{class}}"),),
                "s",
            ),
            Panel(
                "Swing of the queue",
                "Variance of the depth over a minute: it rises before the mean does.",
                (("max by (class) (headrace_queue_depth_variance)", "{{class}}"),),
            ),
            Panel("Time to first token, p95", "From arrival.", (_quantile(0.95, _TTFT),), "s"),
            Panel(
                "of it: waiting for slot and blocks, p95",
                "From arrival to dispatch. The rest of the time to the first token is prefill.",
                (_quantile(0.95, "headrace_wait_time_seconds"),),
                "s",
            ),
            Panel(
                "SLO attainment, five minutes",
                "Part of the requests that met their class's objective.",
                (
                    (
                        'min by (class, slo) (headrace_slo_attainment{window="5m"})',
                        "{{class}} {{slo}}",
                    ),
                ),
                "percentunit",
            ),
        ),
    ),
    (
        "Who gets what, and who borrows",
        (
            Panel(
                "Output tokens a second, by tenant",
                "As they come.",
                (_rate("headrace_generated_tokens_total", "tenant"),),
            ),
            Panel(
                "Cost dispatched a second, by class",
                "Prompt and output tokens at their prices.",
                (("sum by (class) (deriv(headrace_dispatched_cost[1m]))", "{{class}}"),),
                stacked=True,
            ),
            Panel(
                "Borrowed part",
                "Of what a class ran over the last minute: the part on the idle rate of others.",
                (("max by (from, to) (headrace_borrow_ratio)", "{{to}} from {{from}}"),),
                "percentunit",
            ),
            Panel(
                "Token buckets",
                "What each node of the class tree has saved up; below 0 it is owed.",
                (('sum by (node) (headrace_bucket_level{bucket="rate"})', "{{node}}"),),
            ),
            Panel(
                "Answers a second, by outcome",
                "Terminal replies.",
                (_rate("headrace_requests_total", "outcome"),),
                stacked=True,
            ),
            Panel(
                "Never run",
                "Refused at ingress, over quota, no room, expired.",
                (
                    (
                        "sum by (class, code) (rate(headrace_rejected_requests_total[$__rate_interval]))",
                        "{{class}} {{code}}",
                    ),
                ),
            ),
        ),
    ),
    (
        "Who was preempted",
        (
            Panel(
                "Preemptions a second",
                "By victim's class and mode.",
                (
                    (
                        "sum by (victim_class, causer_class, mode) "
                        "(rate(headrace_preemptions_total[$__rate_interval]))",
                        "{{victim_class}} for {{causer_class}}, {{mode}}",
                    ),
                ),
            ),
            Panel(
                "Suspended, p95",
                "How long in all, of requests that were.",
                (_quantile(0.95, "headrace_suspended_time_seconds"),),
                "s",
            ),
            Panel(
                "Gap between tokens, p99",
                "Time in which the request was suspended included.",
                (_quantile(0.99, "headrace_inter_token_gap_seconds"),),
                "s",
            ),
        ),
    ),
    (
        "What the engine does",
        (
            Panel("Slots", "By class and state.", (_last("headrace_slots", "class, state"),), stacked=True),
            Panel("KV blocks", "By class and state.", (_last("headrace_kv_blocks", "class, state"),), stacked=True),
            Panel(
                "Prefix cache hits",
                "Part of the prompt tokens that were found.",
                (
                    (
                        "sum by (class) (rate(headrace_prefix_hit_tokens_total[$__rate_interval])) / "
                        "sum by (class) (rate(headrace_prefix_asked_tokens_total[$__rate_interval]))",
                        "{{class}}",
                    ),
                ),
                "percentunit",
            ),
            Panel(
                "Tokens computed a second",
                "In prefill and in decode.",
                (_rate("headrace_engine_tokens_total", "phase"),),
                stacked=True,
            ),
            Panel(
                "Step",
                "Length of a forward pass.",
                (
                    _quantile(0.5, "headrace_engine_step_time_seconds", ""),
                    _quantile(0.99, "headrace_engine_step_time_seconds", ""),
                ),
                "s",
            ),
            Panel(
                "Busy",
                "Part of the time in forward passes. Low with a queue: something else holds work back.",
                (("avg(headrace_engine_busy)", "busy"),),
                "percentunit",
            ),
        ),
    ),
    (
        "What is committed",
        (
            Panel(
                "Behind the committed base",
                "Records unread, waiting or running. One slow request pins it.",
                (_last("headrace_commit_lag", "class"),),
            ),
            Panel(
                "Answered beyond the base",
                "What a restart would not run again, thanks to the map in the commit.",
                (_last("headrace_commit_beyond_base", "class"),),
            ),
            Panel(
                "Commits, rebalances, dead letters",
                "A second. `rejected`: the group had moved on.",
                (
                    ("sum by (outcome) (rate(headrace_commits_total[$__rate_interval]))", "commits {{outcome}}"),
                    ("sum(rate(headrace_rebalances_total[$__rate_interval]))", "rebalances"),
                    ("sum(rate(headrace_dead_letters_total[$__rate_interval]))", "dead letters"),
                ),
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """Grafana's model of it."""
    return {
        "uid": "headrace",
        "title": "Headrace",
        "tags": ["headrace"],
        "timezone": "browser",
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "graphTooltip": 1,  # one crosshair through all panels
        "editable": False,
        "schemaVersion": 39,
        "panels": list(_panels()),
    }


def _panels() -> Iterator[dict[str, Any]]:
    number, y = 1, 0
    for title, panels in ROWS:
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": y, "w": _COLUMNS * _WIDTH, "h": 1},
            "panels": [],
        }
        number, y = number + 1, y + 1
        for place, panel in enumerate(panels):
            row, column = divmod(place, _COLUMNS)
            at = {"x": column * _WIDTH, "y": y + row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            yield _panel(number, panel, at)
            number += 1
        y += -(-len(panels) // _COLUMNS) * _HEIGHT


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    custom: dict[str, Any] = {"fillOpacity": 20 if panel.stacked else 0, "showPoints": "never"}
    if panel.stacked:
        custom["stacking"] = {"mode": "normal"}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.meaning,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
            for place, (expression, legend) in enumerate(panel.queries)
        ],
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=2))
