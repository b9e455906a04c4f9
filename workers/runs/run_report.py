"""Several runs side by side: the rows of one table, and one HTML page that needs no other file.

Knows figures and pictures. Does not compute any.
"""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from workers.runs.run_results import PERCENTILES, SPREAD_NOTE, Figures

__all__ = ["ReportRun", "comparison", "html_report"]


@dataclass(frozen=True, slots=True)
class ReportRun:
    policy: str
    load: str
    """As it is shown; `as recorded` where time was not scaled."""
    figures: Figures
    png: bytes | None


def comparison(runs: Sequence[ReportRun]) -> tuple[list[str], list[list[str]]]:
    """Headings and one row a run. Times in ms; a class that no run has gets no column."""
    classes = sorted({label for run in runs for label in run.figures["by_class"]})
    headings = ["policy", "load", "makespan s", "tokens/s"]
    headings += [f"{label} TTFT p95 (SLO)" for label in classes]
    headings += ["Jain", "gap max", "recomputed", "slowest ÷ fastest"]
    return headings, [_row(run, classes) for run in runs]


def _row(run: ReportRun, classes: Sequence[str]) -> list[str]:
    figures = run.figures
    by_class = [figures["by_class"].get(label, {}) for label in classes]
    fair = figures["fairness"].get("all", {})
    spread = figures["slowest_over_fastest_tenant"] or {}
    return [
        run.policy,
        run.load,
        _number(figures["duration"], 1),
        _number(figures["output_throughput"], 1),
        *(
            f"{_number(_percentile(group.get('percentiles_ttft_ms'), 95), 0)} ({_percent(group.get('slo_attainment'))})"
            for group in by_class
        ),
        _number(fair.get("jain"), 4),
        _number(fair.get("gap_max"), 0),
        _percent(None if figures["engine"] is None else figures["engine"]["recomputed_over_all_tokens"]),
        _number(spread.get("ratio"), 2),
    ]


def _percentile(pairs: Sequence[Sequence[float]] | None, wanted: int) -> float | None:
    assert wanted in PERCENTILES
    return None if pairs is None else next(value for percentile, value in pairs if percentile == wanted)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


# --- HTML -------------------------------------------------------------------------------------------------------------

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 78rem; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { border-bottom: 1px solid #ddd; padding: .3rem .6rem; text-align: right }
th:first-child, td:first-child { text-align: left }
.wide { overflow-x: auto }
img { max-width: 100% }
code { background: #f4f4f4; padding: .1rem .3rem }
"""


def html_report(settings: dict[str, Any], runs: Sequence[ReportRun]) -> str:
    headings, rows = comparison(runs)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><title>Headrace: runs</title>',
        f"<style>{_STYLE}</style></head><body>",
        "<h1>Runs</h1>",
        _definitions(settings),
        "<h2>Side by side</h2>",
        '<div class="wide">' + _table(headings, rows) + "</div>",
        "<p>TTFT in ms, from arrival to first token. SLO: part of the finished requests that met every objective of "
        "their class. Jain: index over service ÷ weight of backlogged tenants, 1 is even. Gap max: the most cost units "
        "by which one backlogged tenant got ahead of another. Recomputed: tokens computed again after preemption, of "
        f"all. Note: {escape(SPREAD_NOTE)}.</p>",
    ]
    for run in runs:
        parts.append(f"<h2>{escape(run.policy)}, load {escape(run.load)}</h2>")
        if run.png is not None:
            data = b64encode(run.png).decode("ascii")
            parts.append(
                f'<img alt="{escape(run.policy)}, load {escape(run.load)}" src="data:image/png;base64,{data}">'
            )
        parts.append('<div class="wide">' + _table(*_tenants(run.figures)) + "</div>")
    parts.append("</body></html>\n")
    return "\n".join(parts)


def _tenants(figures: Figures) -> tuple[list[str], list[list[str]]]:
    headings = ["tenant", "requests", "output tokens/s", "TTFT mean ms", "TTFT p95 ms", "E2E mean ms", "preemptions"]
    rows = [
        [
            tenant,
            f"{group['completed']}/{group['requests']}",
            _number(group["output_throughput"], 1),
            _number(group["mean_ttft_ms"], 1),
            _number(_percentile(group["percentiles_ttft_ms"], 95), 1),
            _number(group["mean_e2el_ms"], 1),
            str(group["preemptions"]),
        ]
        for tenant, group in figures["by_tenant"].items()
    ]
    return headings, rows


def _definitions(settings: dict[str, Any]) -> str:
    items = "".join(
        f"<tr><td>{escape(str(name))}</td><td>{escape(_said(value))}</td></tr>" for name, value in settings.items()
    )
    return f"<table>{items}</table>"


def _said(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(_said(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{name} = {item}" for name, item in value.items())
    return str(value)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
