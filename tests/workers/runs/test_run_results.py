"""The figures of a hand-made run: latencies, SLOs, throughput, groups."""

from array import array
from typing import Any

import numpy as np
import pytest

from kvcache.manager import KVCacheManager
from scheduling.batch_statistics import BatchStatistics
from scheduling.length import LengthStatistics
from scheduling.priority import PriorityClass
from scheduling.state import RequestState
from scheduling.step_time import LinearStepTime, StepTimeStatistics
from scheduling.suspension import SuspensionStatistics
from scheduling.tree import Slo
from workers.runs.run_record import EngineTotals, RequestRecord, RunRecord, Ticks
from workers.runs.run_results import Figures, request_times, run_figures
from workers.runs.trace_mix import ArrivingRequest

P0, P1 = PriorityClass.P0, PriorityClass.P1
STEP_ENDS = array("d", [1.0, 2.0, 3.0, 5.0, 6.0])


def finished(
    number: int, arrival_s: float, steps: list[int], tenant: str = "a", priority: PriorityClass = P1
) -> RequestRecord:
    record = RequestRecord(ArrivingRequest(number, arrival_s, 10, len(steps), priority, tenant, tenant), account=0)
    record.token_steps = array("I", steps)
    record.outcome = RequestState.FINISHED
    return record


def run(*records: RequestRecord) -> RunRecord:
    accounts = tuple(sorted({(record.request.priority, record.request.tenant) for record in records}))
    for record in records:
        record.account = accounts.index((record.request.priority, record.request.tenant))
    counters: dict[str, Any] = dict.fromkeys(BatchStatistics.__slots__, 0) | {
        "prefill_tokens": 60,
        "decode_tokens": 40,
        "lost_tokens": 30,
        "recomputed_tokens": 25,
        "suspensions": SuspensionStatistics(
            preemptions=0,
            swapped=0,
            lost_tokens=0,
            swapped_tokens=0,
            swap_cost_tokens=0,
            demotions=0,
            past_budget=0,
            rule=None,
        ),
        "step_time": StepTimeStatistics(LinearStepTime(), 0, 0.0),
    }
    return RunRecord(
        requests=records,
        accounts=accounts,
        ticks=Ticks(
            interval_s=1.0,
            service=np.zeros((6, len(accounts)), dtype=np.int64),
            backlogged=np.zeros((6, len(accounts)), dtype=np.bool_),
            queued=np.zeros((6, 4), dtype=np.int64),
            running=np.zeros(6, dtype=np.int64),
            borrowed=np.zeros((6, 4), dtype=np.int64),
            queue_seconds=np.array([1.0, 3.0, 2.0, 2.0, 0.0, 4.0]),
            queue_squared_seconds=np.array([1.0, 9.0, 4.0, 4.0, 0.0, 16.0]),
        ),
        step_ends_s=STEP_ENDS,
        longest_step_s=2.0,
        busy_s=6.0,
        end_s=6.0,
        engine=EngineTotals(
            batch=BatchStatistics(**counters),
            kv=KVCacheManager(4, 16).statistics(),
            lengths=LengthStatistics(0, 0, 0, 0.0, 0.0, 0, 0),
        ),
    )


def figures(record: RunRecord, slo: Slo | None = None) -> Figures:
    return run_figures(record, lambda _: slo or Slo(), lambda _: 1.0)


def test_latencies_are_as_vllm_defines_them() -> None:
    result = figures(run(finished(0, 0.5, [0, 1, 3])))
    assert result["mean_ttft_ms"] == 500
    assert result["mean_e2el_ms"] == 4500
    assert result["mean_tpot_ms"] == (4500 - 500) / 2
    # 1 → 2 and 2 → 5 s
    assert (result["mean_itl_ms"], result["std_itl_ms"]) == (2000, 1000)
    assert result["percentiles_itl_ms"] == [[50, 2000], [90, 2800], [95, 2900], [99, 2980]]


def test_gaps_are_within_a_request_never_between_two() -> None:
    result = figures(run(finished(0, 0.0, [0, 1]), finished(1, 0.0, [3, 4])))
    assert result["mean_itl_ms"] == 1000


def test_one_token_has_no_further_token_to_be_timed() -> None:
    result = figures(run(finished(0, 0.0, [2])))
    assert result["mean_ttft_ms"] == result["mean_e2el_ms"] == 3000
    assert (result["mean_tpot_ms"], result["percentiles_itl_ms"]) == (None, None)


def test_throughput_is_over_the_whole_run() -> None:
    result = figures(run(finished(0, 0.0, [0, 1]), finished(1, 0.0, [0])))
    assert result["request_throughput"] == pytest.approx(2 / 6, abs=1e-6)
    assert result["output_throughput"] == 0.5
    assert result["total_token_throughput"] == pytest.approx(23 / 6, abs=1e-6)


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (Slo(), 2),
        (Slo(ttft_s=1.0), 1),
        (Slo(tpot_s=1.5), 1),
        (Slo(e2e_s=4.0), 1),
        (Slo(ttft_s=1.0, tpot_s=1.5), 0),
    ],
)
def test_a_request_is_good_if_it_meets_every_slo(slo: Slo, good: int) -> None:
    # TTFT 1 s, TPOT 2 s, E2E 5 s; and TTFT 2 s, TPOT 1 s, E2E 3 s
    result = figures(run(finished(0, 0.0, [0, 1, 3]), finished(1, 0.0, [1, 2])), slo)
    assert result["slo_attainment"] == good / 2
    assert result["request_goodput"] == pytest.approx(good / 6, abs=1e-6)


def test_classes_and_tenants_have_the_same_figures_of_their_own() -> None:
    result = figures(
        run(finished(0, 0.0, [0], "a", P0), finished(1, 0.0, [1, 2], "a", P1), finished(2, 0.0, [3], "b", P1))
    )
    assert {label: group["completed"] for label, group in result["by_class"].items()} == {"p0": 1, "p1": 2}
    assert result["by_class"]["p0"]["mean_ttft_ms"] == 1000
    assert {tenant: group["mean_ttft_ms"] for tenant, group in result["by_tenant"].items()} == {"a": 1500, "b": 5000}
    assert result["slowest_over_fastest_tenant"]["ratio"] == pytest.approx(5000 / 2000)


def test_what_did_not_finish_counts_and_has_no_latency() -> None:
    failed = finished(1, 0.0, [])
    failed.outcome = RequestState.FAILED
    cut_off = finished(2, 0.0, [0, 1])
    cut_off.outcome = None
    result = figures(run(finished(0, 0.0, [0]), failed, cut_off))
    assert (result["requests"], result["completed"], result["failed"]) == (3, 1, 1)
    assert result["mean_ttft_ms"] == 1000


def test_a_run_in_which_nothing_finished_has_no_latencies() -> None:
    cut_off = finished(0, 0.0, [])
    cut_off.outcome = None
    result = figures(run(cut_off))
    assert (result["mean_ttft_ms"], result["slo_attainment"], result["output_throughput"]) == (None, None, 0.0)


def test_the_queue_has_mean_and_variance_over_time() -> None:
    queue = figures(run(finished(0, 0.0, [0])))["queue"]
    assert (queue["mean"], queue["variance"]) == (2.0, pytest.approx(34 / 6 - 4, abs=1e-6))
    assert [window["mean"] for window in queue["windows"]] == [1.0, 3.0, 2.0, 2.0, 0.0, 4.0]


def test_recomputed_tokens_are_a_part_of_all() -> None:
    assert figures(run(finished(0, 0.0, [0])))["engine"]["recomputed_over_all_tokens"] == 0.25


def test_times_can_be_chosen_again_and_keep_their_gaps() -> None:
    times = request_times(run(finished(0, 0.0, [0, 1]), finished(1, 0.0, [0, 2, 3], "b"), finished(2, 0.0, [4], "b")))
    of_b = times.of_tenant("b")
    assert of_b.itl.tolist() == [2.0, 2.0]
    assert of_b.itl_request.tolist() == [0, 0]
    assert of_b.of_class(P1).e2el.tolist() == [5.0, 6.0]
    assert len(of_b.of_class(P0).ttft) == len(of_b.of_class(P0).itl) == 0
