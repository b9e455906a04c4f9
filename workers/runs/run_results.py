"""The figures of a run, in the names of `vllm bench serve`, and its requests as CSV.

Knows records, SLOs and weights. Does not know how the run came about or how figures are shown.

TTFT is from arrival to the first token, E2EL to the last; TPOT = (E2EL − TTFT) ÷ (output tokens − 1), of requests with
two tokens or more; ITL is every gap between two tokens of one request. Throughputs are over the whole run, to the end
of its last step. A request is *good* if it met every SLO of its class.
"""

import csv
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduling.priority import PriorityClass
from scheduling.state import RequestState
from scheduling.tree import Slo
from workers.runs.fairness import Party, fairness
from workers.runs.run_record import Account, EngineTotals, RequestRecord, RunRecord
from workers.runs.ttft_split import TTFT_STAGES, mean_split, ttft_split

__all__ = [
    "PERCENTILES",
    "SPREAD_NOTE",
    "Figures",
    "RequestTimes",
    "request_times",
    "run_figures",
    "split_of",
    "write_requests",
]

PERCENTILES = (50, 90, 95, 99)
QUEUE_WINDOWS = 10
SPREAD_NOTE = (
    "slowest ÷ fastest tenant says nothing about fairness: a tenant that floods should wait, so a fair policy makes it "
    "larger than an unfair one; compare ttft_slowdown_alone instead"
)

Figures = dict[str, Any]
"""JSON values. Times in ms, rates a second."""


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Latencies of requests that finished, in seconds, an item a request (`itl`: an item a gap)."""

    priority: NDArray[np.int64]
    tenant: NDArray[np.str_]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    ttft: NDArray[np.float64]
    e2el: NDArray[np.float64]
    itl: NDArray[np.float64]
    itl_request: NDArray[np.int64]
    """Which request each gap belongs to."""

    @property
    def tpot(self) -> NDArray[np.float64]:
        """0 for a request of one token, which has no further token to wait for."""
        return np.where(self.output_tokens > 1, (self.e2el - self.ttft) / np.maximum(1, self.output_tokens - 1), 0.0)

    def meets(self, slos: Callable[[PriorityClass], Slo]) -> NDArray[np.bool_]:
        """By request: every SLO of its class was met."""
        met = np.ones(len(self.ttft), dtype=np.bool_)
        tpot = self.tpot
        for priority in PriorityClass:
            slo, of_class = slos(priority), self.priority == priority
            for limit, values in ((slo.ttft_s, self.ttft), (slo.tpot_s, tpot), (slo.e2e_s, self.e2el)):
                if limit is not None:
                    met &= ~of_class | (values <= limit)
        return met

    def where(self, chosen: NDArray[np.bool_]) -> "RequestTimes":
        gaps = chosen[self.itl_request]
        return RequestTimes(
            self.priority[chosen],
            self.tenant[chosen],
            self.prompt_tokens[chosen],
            self.output_tokens[chosen],
            self.ttft[chosen],
            self.e2el[chosen],
            self.itl[gaps],
            (np.cumsum(chosen) - 1)[self.itl_request[gaps]],
        )

    def of_class(self, priority: PriorityClass) -> "RequestTimes":
        return self.where(self.priority == priority)

    def of_tenant(self, tenant: str) -> "RequestTimes":
        return self.where(self.tenant == tenant)


def request_times(run: RunRecord) -> RequestTimes:
    finished = [record for record in run.requests if record.outcome is RequestState.FINISHED]
    ends = np.frombuffer(run.step_ends_s, dtype=np.float64) if run.step_ends_s else np.zeros(0)
    counts = np.array([len(record.token_steps) for record in finished], dtype=np.int64)
    steps = array("I")
    for record in finished:
        steps.extend(record.token_steps)
    times = ends[np.frombuffer(steps, dtype=np.uint32)] if finished else np.zeros(0)
    last = np.cumsum(counts) - 1
    first = last - counts + 1
    request_of = np.repeat(np.arange(len(finished)), counts)
    gaps = np.diff(times)
    within = request_of[1:] == request_of[:-1]
    arrivals = np.array([record.request.arrival_s for record in finished], dtype=np.float64)
    return RequestTimes(
        priority=np.array([int(record.request.priority) for record in finished], dtype=np.int64),
        tenant=np.array([record.request.tenant for record in finished], dtype=np.str_),
        prompt_tokens=np.array([record.request.prompt_tokens for record in finished], dtype=np.int64),
        output_tokens=counts,
        ttft=times[first] - arrivals,
        e2el=times[last] - arrivals,
        itl=gaps[within],
        itl_request=request_of[1:][within],
    )


def run_figures(run: RunRecord, slos: Callable[[PriorityClass], Slo], weight: Callable[[Account], float]) -> Figures:
    """Overall in the names of `vllm bench serve`, the same under `by_class` and `by_tenant`, then the rest.

    `weight`: of a tenant within its class.
    """
    times = request_times(run)
    classes = sorted({priority for priority, _ in run.accounts})
    tenants = sorted({tenant for _, tenant in run.accounts})
    requests: defaultdict[PriorityClass | str, list[RequestRecord]] = defaultdict(list)
    for record in run.requests:
        requests[record.request.priority].append(record)
        requests[record.request.tenant].append(record)
    by_tenant = {tenant: _group(requests[tenant], times.of_tenant(tenant), run, slos) for tenant in tenants}
    return {
        **_group(run.requests, times, run, slos),
        "by_class": {
            priority.label: _group(requests[priority], times.of_class(priority), run, slos) for priority in classes
        },
        "by_tenant": by_tenant,
        "fairness": _fairness(run, weight, classes),
        "slowest_over_fastest_tenant": _spread(by_tenant),
        "queue": _queue(run),
        "engine": None if run.engine is None else _engine(run, run.engine),
    }


# --- one group of requests --------------------------------------------------------------------------------------------


def _group(
    records: Sequence[RequestRecord],
    times: RequestTimes,
    run: RunRecord,
    slos: Callable[[PriorityClass], Slo],
) -> Figures:
    completed = len(times.ttft)
    good = int(times.meets(slos).sum())
    duration = run.end_s or 1.0
    prompt, output = int(times.prompt_tokens.sum()), int(times.output_tokens.sum())
    return {
        "requests": len(records),
        "completed": completed,
        "failed": sum(record.outcome not in (None, RequestState.FINISHED) for record in records),
        "duration": _rounded(run.end_s),
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": _rounded(completed / duration),
        "request_goodput": _rounded(good / duration),
        "slo_attainment": _rounded(good / completed) if completed else None,
        "output_throughput": _rounded(output / duration),
        "total_token_throughput": _rounded((prompt + output) / duration),
        **_latency("ttft", times.ttft),
        **_latency("tpot", times.tpot[times.output_tokens > 1]),
        **_latency("itl", times.itl),
        **_latency("e2el", times.e2el),
        "preemptions": sum(record.preemptions for record in records),
        "most_preemptions_of_one_request": max((record.preemptions for record in records), default=0),
        **_live(records, run.step_ends_s),
    }


def _live(records: Sequence[RequestRecord], step_ends_s: "array[float]") -> Figures:
    """What only a live run has: where the time to the first token went, and which errors there were."""
    figures: Figures = {}
    if split := mean_split(filter(None, (split_of(record, step_ends_s) for record in records))):
        figures["mean_ttft_split_ms"] = {name: _rounded(seconds * 1000) for name, seconds in split.items()}
    if errors := Counter(record.error for record in records if record.error is not None):
        figures["errors"] = dict(sorted(errors.items()))
    return figures


def split_of(record: RequestRecord, step_ends_s: "array[float]") -> dict[str, float] | None:
    """None: it had no token, or nobody said where its time went."""
    if record.stages is None or not record.token_steps:
        return None
    return ttft_split(record.stages, step_ends_s[record.token_steps[0]] - record.request.arrival_s)


def _latency(name: str, seconds: NDArray[np.float64]) -> Figures:
    if not len(seconds):
        return {f"{what}_{name}_ms": None for what in ("mean", "median", "std", "percentiles")}
    ms = seconds * 1000
    percentiles = np.percentile(ms, PERCENTILES)
    return {
        f"mean_{name}_ms": _rounded(float(ms.mean())),
        f"median_{name}_ms": _rounded(float(np.median(ms))),
        f"std_{name}_ms": _rounded(float(ms.std())),
        f"percentiles_{name}_ms": [
            [percentile, _rounded(float(value))] for percentile, value in zip(PERCENTILES, percentiles, strict=True)
        ],
    }


def _rounded(value: float) -> float:
    """Six digits behind the point: more is noise of the arithmetic."""
    return round(value, 6)


# --- the whole run ----------------------------------------------------------------------------------------------------


def _fairness(
    run: RunRecord, weight: Callable[[Account], float], classes: Sequence[PriorityClass]
) -> dict[str, Figures]:
    """Between the tenants of each class, and (`all`) between tenants whatever the class."""
    accounts = list(enumerate(run.accounts))
    groups: dict[str, list[Party]] = {
        priority.label: [
            Party(account[1], (place,), weight(account)) for place, account in accounts if account[0] == priority
        ]
        for priority in classes
    }
    groups["all"] = [
        Party(
            tenant,
            tuple(place for place, account in accounts if account[1] == tenant),
            max(weight(account) for _, account in accounts if account[1] == tenant),
        )
        for tenant in sorted({tenant for _, tenant in run.accounts})
    ]
    return {name: asdict(fairness(run.ticks, parties)) for name, parties in groups.items() if len(parties) > 1}


def _spread(by_tenant: dict[str, Figures]) -> Figures | None:
    means = sorted(figures["mean_e2el_ms"] for figures in by_tenant.values() if figures["mean_e2el_ms"] is not None)
    if len(means) < 2 or means[0] == 0:
        return None
    return {"ratio": _rounded(means[-1] / means[0]), "note": SPREAD_NOTE}


def _queue(run: RunRecord) -> Figures:
    """Mean and variance over time, whole and in tenths of the run: a queue whose mean is flat may still swing wider."""
    seconds, squares = run.ticks.queue_seconds, run.ticks.queue_squared_seconds
    interval_s, ticks = run.ticks.interval_s, len(run.ticks.running)
    bounds = [ticks * part // QUEUE_WINDOWS for part in range(QUEUE_WINDOWS + 1)]
    windows = [
        {"start_s": start * interval_s, **_moments(seconds[start:end], squares[start:end], interval_s)}
        for start, end in pairwise(bounds)
        if end > start
    ]
    return {**_moments(seconds, squares, interval_s), "windows": windows}


def _moments(seconds: NDArray[np.float64], squares: NDArray[np.float64], interval_s: float) -> Figures:
    if not len(seconds):
        return {"mean": None, "variance": None}
    mean = float(seconds.sum()) / (len(seconds) * interval_s)
    variance = float(squares.sum()) / (len(seconds) * interval_s) - mean * mean
    return {"mean": _rounded(mean), "variance": _rounded(max(0.0, variance))}


def _engine(run: RunRecord, totals: EngineTotals) -> Figures:
    batch, lengths = totals.batch, totals.lengths
    computed = batch.prefill_tokens + batch.decode_tokens
    return {
        "steps": batch.steps,
        "busy_s": _rounded(run.busy_s),
        "longest_step_ms": _rounded(run.longest_step_s * 1000),
        "prefill_tokens": batch.prefill_tokens,
        "decode_tokens": batch.decode_tokens,
        "preemptions": batch.preemptions,
        "lost_tokens": batch.lost_tokens,
        "recomputed_tokens": batch.recomputed_tokens,
        "recomputed_over_all_tokens": _rounded(batch.recomputed_tokens / computed) if computed else 0.0,
        "backfills": batch.backfills,
        "kv_blocks": totals.kv.pool.blocks,
        "kv_free_blocks_lowest": totals.kv.pool.free_lowest,
        "length_mean_error_tokens": _rounded(lengths.mean_error_tokens),
        "length_mean_absolute_error_tokens": _rounded(lengths.mean_absolute_error_tokens),
        "length_exceeded": lengths.exceeded,
    }


# --- requests as CSV --------------------------------------------------------------------------------------------------

_COLUMNS = (
    "request",
    "class",
    "tenant",
    "flow",
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "outcome",
    "queued_s",
    "ttft_s",
    "e2el_s",
    "preemptions",
)


def write_requests(path: Path, run: RunRecord) -> None:
    """A row for each request; `workers.runs.trace_files` reads it as a trace again. Of a live run also its stages."""
    live = any(record.stages is not None for record in run.requests)
    more = tuple(f"{name}_s" for name in TTFT_STAGES) if live else ()
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*_COLUMNS, *more))
        for record in run.requests:
            request = record.request
            steps = record.token_steps
            writer.writerow(
                (
                    request.number,
                    request.priority.label,
                    request.tenant,
                    request.flow,
                    f"{request.arrival_s:.6f}",
                    request.prompt_tokens,
                    request.output_tokens,
                    "" if record.outcome is None else record.outcome.name.lower(),
                    "" if record.admitted_s is None else f"{record.admitted_s - request.arrival_s:.6f}",
                    f"{run.step_ends_s[steps[0]] - request.arrival_s:.6f}" if steps else "",
                    f"{run.step_ends_s[steps[-1]] - request.arrival_s:.6f}" if steps else "",
                    record.preemptions,
                    *_stage_cells(record, run.step_ends_s, more),
                )
            )


def _stage_cells(record: RequestRecord, step_ends_s: "array[float]", columns: Sequence[str]) -> list[str]:
    split = split_of(record, step_ends_s)
    return ["" if split is None else f"{split[column.removesuffix('_s')]:.6f}" for column in columns]
