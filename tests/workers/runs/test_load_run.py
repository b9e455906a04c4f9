"""What a client saw of a run, as the record that figures and plots are made of."""

from array import array
from pathlib import Path
from typing import Any

import pytest

from scheduling.cost import CostModel
from scheduling.priority import PriorityClass
from scheduling.tree import Slo
from topics.stage_times import StageTimes
from workers.runs.capacity import capacity_of
from workers.runs.load_player import Observation
from workers.runs.load_run import live_run
from workers.runs.run_plots import draw_run
from workers.runs.run_record import RunRecord
from workers.runs.run_results import Figures, request_times, run_figures, write_requests
from workers.runs.trace_files import read_trace
from workers.runs.trace_mix import ArrivingRequest

P1 = PriorityClass.P1


def request(number: int, arrival_s: float, tenant: str = "a") -> ArrivingRequest:
    return ArrivingRequest(number, arrival_s, 10, 4, P1, tenant, tenant)


def observation(deltas: list[tuple[float, int]], ended_s: float | None, **fields: Any) -> Observation:
    return Observation(
        delta_s=array("d", [time_s for time_s, _ in deltas]),
        delta_tokens=array("I", [tokens for _, tokens in deltas]),
        ended_s=ended_s,
        **fields,
    )


def test_capacity_is_what_was_served_while_something_waited() -> None:
    # Ten of 10 + 4 tokens, all there at the start: one ends each second, and in the last one's nothing waits.
    seen = [observation([(n + 0.5, 4)], n + 0.5, completion_tokens=4) for n in range(10)]
    record = live_run([request(number, 0.0) for number in range(10)], seen, CostModel())
    found = capacity_of(record, CostModel())
    assert found.units_s == pytest.approx(CostModel().prompt(10) + CostModel().output(4))
    assert (found.requests_s, found.stream_s) == pytest.approx((1.0, 10.0))
    assert found.factor([request(0, 0.0), request(1, 5.0)], 1.25) == pytest.approx(10.0 / 1.25 / 5.0)


ANSWERED = observation(
    [(3.0, 1), (4.0, 2)], 5.0, completion_tokens=4, stages=StageTimes(ingress=0.1, queue=1.0, slot=0.2, prefill=0.5)
)
REFUSED = observation([], 2.5, error="resource_exhausted")
LOST = observation([], None)


def run(*seen: Observation) -> RunRecord:
    return live_run([request(number, number / 2) for number in range(len(seen))], seen, CostModel())


def figures(record: RunRecord) -> Figures:
    return run_figures(record, lambda _: Slo(), lambda _: 1.0)


def test_times_count_from_when_the_request_was_due() -> None:
    times = request_times(live_run([request(0, 1.0)], [ANSWERED], CostModel()))
    assert times.ttft.tolist() == [2.0]
    # The fourth token was in no delta: the final brought it.
    assert times.e2el.tolist() == [4.0]
    assert times.itl.tolist() == [1.0, 0.0, 1.0]


def test_service_is_counted_as_tokens_arrive_and_waiting_until_the_prefill() -> None:
    record = run(ANSWERED)
    assert record.ticks.service[:, 0].tolist() == [0, 0, 0, 12, 16]
    assert record.ticks.queued[:, P1].tolist() == [1, 1, 0, 0, 0]
    assert record.ticks.running.tolist() == [0, 0, 1, 1, 1]


def test_what_was_refused_and_what_never_came_is_told_apart() -> None:
    found = figures(run(ANSWERED, REFUSED, LOST))
    assert (found["requests"], found["completed"], found["failed"]) == (3, 1, 1)
    assert found["errors"] == {"resource_exhausted": 1}
    assert found["engine"] is None


def test_the_split_adds_up_to_the_time_to_the_first_token() -> None:
    found = figures(run(ANSWERED))
    split = found["mean_ttft_split_ms"]
    assert split == {"transport": 1200.0, "ingress": 100.0, "queue": 1000.0, "slot": 200.0, "prefill": 500.0}
    assert sum(split.values()) == pytest.approx(found["mean_ttft_ms"])


def test_the_csv_has_the_split_and_is_a_trace_again(tmp_path: Path) -> None:
    write_requests(tmp_path / "r.csv", run(ANSWERED, LOST))
    header, first, second = (tmp_path / "r.csv").read_text().splitlines()
    assert header.endswith("transport_s,ingress_s,queue_s,slot_s,prefill_s")
    assert first.endswith("1.200000,0.100000,1.000000,0.200000,0.500000")
    assert second.endswith(",,,,")
    assert len(read_trace(tmp_path / "r.csv").requests) == 2


def test_a_live_run_can_be_drawn() -> None:
    record = run(ANSWERED, REFUSED)
    assert draw_run("live", record, request_times(record)).startswith(b"\x89PNG")
