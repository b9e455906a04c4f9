"""What `bench engine` says of its runs: medians, ratios, and how many requests got the same tokens.

Knows the figures that every engine's process answers with. Does not know engines.
"""

from statistics import median
from typing import Any

from rich.table import Table

__all__ = ["engine_figures", "engine_table"]

_FIGURES = ("output_tokens_s", "processor_s", "ttft_mean_s", "ttft_p95_s", "peak_rss_mb")


def engine_figures(runs: list[dict[str, Any]], engines: list[str]) -> dict[str, Any]:
    """By number format: each engine's medians and our ratios to each peer. `engines`: ours first."""
    figures: dict[str, Any] = {}
    for dtype in dict.fromkeys(run["dtype"] for run in runs):
        of_dtype: dict[str, Any] = {}
        for engine in engines:
            mine = [run for run in runs if (run["engine"], run["dtype"]) == (engine, dtype)]
            of_dtype[engine] = {name: median(run[name] for run in mine) for name in _FIGURES}
            of_dtype[engine]["requests"] = mine[0]["requests"]
            of_dtype[engine]["same_outputs"] = min(run["same_outputs"] for run in mine)
            if engine == "headrace":
                of_dtype[engine]["gil_wait_share"] = median(run["gil_wait_share"] for run in mine)
        ours = of_dtype[engines[0]]
        for peer in engines[1:]:
            theirs = of_dtype[peer]
            of_dtype[f"ratio_{peer}"] = ours["output_tokens_s"] / theirs["output_tokens_s"]
            of_dtype[f"processor_ratio_{peer}"] = theirs["processor_s"] / ours["processor_s"]
            of_dtype[f"ttft_ratio_{peer}"] = ours["ttft_mean_s"] / theirs["ttft_mean_s"]
            of_dtype[f"rss_ratio_{peer}"] = ours["peak_rss_mb"] / theirs["peak_rss_mb"]
        figures[dtype] = of_dtype
    return figures


def engine_table(figures: dict[str, Any], engines: list[str]) -> Table:
    table = Table(title="medians; same tokens: requests that got what our first run wrote")
    for heading in ("format", "engine"):
        table.add_column(heading)
    for heading in ("output tokens/s", "TTFT mean", "TTFT p95", "processor time", "peak RSS", "same tokens"):
        table.add_column(heading, justify="right")
    for dtype, of_dtype in figures.items():
        for engine in engines:
            values = of_dtype[engine]
            table.add_row(
                dtype,
                engine,
                f"{values['output_tokens_s']:.1f}",
                f"{values['ttft_mean_s']:.2f} s",
                f"{values['ttft_p95_s']:.2f} s",
                f"{values['processor_s']:.1f} s",
                f"{values['peak_rss_mb']:,.0f} MB",
                f"{values['same_outputs']} of {values['requests']}",
            )
        for peer in engines[1:]:
            table.add_row(
                dtype,
                f"beside {peer}",
                f"{of_dtype[f'ratio_{peer}']:.2f} ×",
                f"{of_dtype[f'ttft_ratio_{peer}']:.2f} ×",
                "",
                f"÷ {of_dtype[f'processor_ratio_{peer}']:.2f}",
                f"{of_dtype[f'rss_ratio_{peer}']:.2f} ×",
                "",
            )
    return table
