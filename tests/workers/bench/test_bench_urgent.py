"""The figures of `bench urgent`, on phases made by hand: no broker, no model."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from scheduling.step_time import LinearStepTime
from tests.workers.engine.engine_rig import Rig
from workers.bench.recorded_steps import RecordedStep
from workers.bench.urgent import Phase, RequestRecord
from workers.bench.urgent_figures import NoLoadError, check_load, makespans, phase_figures, ttft_parts

STEP = RecordedStep(10.0, 10.4, 0, 3, 300)


def request(arrived_s: float, admitted_s: float, ended_s: float, *, urgent: bool = False) -> RequestRecord:
    return RequestRecord(
        urgent=urgent,
        sent_s=arrived_s - 0.01,
        arrived_s=arrived_s,
        staged_s=arrived_s + 0.02,
        admitted_s=admitted_s,
        first_token_s=admitted_s + 0.1,
        first_delta_s=admitted_s + 0.11,
        last_token_s=ended_s,
        ended_s=ended_s + 0.01,
        output_tokens=16,
        suspended=(),
    )


def phase(*requests: RequestRecord, steps: tuple[RecordedStep, ...] = (STEP,), max_sequences: int = 3) -> Phase:
    return Phase("htb", max_sequences, requests, steps, Rig().parts.engine.statistics())


def test_the_parts_of_a_ttft_follow_each_other_and_add_up() -> None:
    urgent = request(10.1, 10.5, 11.0, urgent=True)
    parts = ttft_parts(urgent, [STEP])
    assert parts == pytest.approx(
        {"ingress": 0.01, "residual step": 0.3, "queue": 0.0, "slot/KV wait": 0.1, "prefill": 0.1, "reply": 0.01}
    )
    assert sum(parts.values()) == pytest.approx(urgent.ttft_s)


def test_without_a_step_at_its_arrival_it_waits_for_its_tokens_alone() -> None:
    urgent = request(9.0, 9.02, 9.5, urgent=True)
    parts = ttft_parts(urgent, [STEP])
    assert (parts["residual step"], parts["queue"], parts["slot/KV wait"]) == pytest.approx((0.0, 0.02, 0.0))


def test_an_urgent_request_must_have_met_a_full_engine_and_work_that_waits() -> None:
    running = [request(1.0, 2.0, 20.0) for _ in range(2)]
    waiting = request(1.0, 15.0, 30.0)
    urgent = request(10.1, 10.5, 11.0, urgent=True)
    met = check_load(phase(*running, waiting, urgent), slots=True)
    assert (met.running, met.waiting) == (2, 1)
    for requests in ((*running, urgent), (running[0], waiting, urgent)):
        with pytest.raises(NoLoadError, match="give more --requests"):
            check_load(phase(*requests), slots=True)
    check_load(phase(running[0], waiting, urgent), slots=False)


def test_of_many_slots_a_few_may_be_between_two_requests() -> None:
    waiting, urgent = request(1.0, 15.0, 30.0), request(10.1, 10.5, 11.0, urgent=True)
    many = replace(phase(waiting, urgent), max_sequences=64)
    for running, met in ((61, True), (60, False)):
        of_phase = replace(many, requests=(*(request(1.0, 2.0, 20.0) for _ in range(running)), waiting, urgent))
        with nullcontext() if met else pytest.raises(NoLoadError):
            assert check_load(of_phase, slots=True).running == running


def test_one_that_is_suspended_does_not_run() -> None:
    suspended = replace(request(1.0, 2.0, 20.0), suspended=((10.0, 10.2),))
    urgent = request(10.1, 10.5, 11.0, urgent=True)
    with pytest.raises(NoLoadError):
        check_load(phase(suspended, request(1.0, 2.0, 20.0), request(1.0, 15.0, 30.0), urgent), slots=True)


def test_figures_are_of_the_urgent_requests_and_the_batchs_throughput() -> None:
    figures = phase_figures(phase(request(0.0, 1.0, 19.98), request(10.1, 10.5, 11.0, urgent=True)))
    assert figures["ttft_p95_s"] == pytest.approx(0.52)
    assert figures["batch_tokens_s"] == pytest.approx(16 / 20.0)
    assert figures["step_max_s"] == pytest.approx(0.4)
    assert figures["preemptions"] == 0


def test_makespans_are_priced_by_one_table_whatever_the_clock_said() -> None:
    prices = LinearStepTime(0.1, 0.001, 0.01, 1e-5)
    loads = [(0, 3, 300), (64, 0, 64), (32, 2, 400), (0, 1, 50), (128, 1, 300)]
    slow, fast = (
        tuple(RecordedStep(0.0, prices.predict(*load) * drift, *load) for load in loads) for drift in (1.1, 1 / 1.1)
    )
    found = makespans([replace(phase(steps=slow), name="fifo"), replace(phase(steps=fast), name="htb")])
    assert found["fifo"] == pytest.approx(found["htb"])
    assert found["htb"] == pytest.approx(sum(prices.predict(*load) for load in loads), rel=0.02)
