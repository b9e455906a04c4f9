"""The loop itself: everything ends, nothing is invented, time and tokens add up, the same seed gives the same bytes."""

from pathlib import Path
from typing import cast

import orjson
import pytest

from scheduling.qdisc import Qdisc
from scheduling.state import RequestState
from scheduling.step_time import LinearStepTime
from tests.simulation.simulation_rig import P0, P1, P2, P3, STEP, engine, figures, policy, request, simulate, stream
from workers.runs.run_results import write_requests
from workers.runs.simulation import Simulation, SimulationStuck
from workers.runs.trace_files import read_trace
from workers.runs.trace_mix import ArrivingRequest, mix, parse_source

DATA = Path(__file__).parents[1] / "data"


def mixed(seed: int = 1) -> tuple[ArrivingRequest, ...]:
    sources = [
        "azure_2023_conv.csv@class=p0:0.3+p1:0.7,tenants=3,limit=60,rate=15",
        "azure_2023_code.csv@class=p1,limit=20,rate=5",
        "vidur_arxiv.csv@class=p2,limit=10,rate=3",
        "synthetic@class=p3,requests=15,prompt=100,output=40",
    ]
    parsed = [parse_source(text) for text in sources]
    return mix(
        [(source, read_trace(DATA / source.path) if source.path else source.synthetic()) for source in parsed], seed
    )


@pytest.mark.parametrize("name", ["fifo", "strict", "htb"])
def test_every_request_ends_once_with_all_its_tokens(name: str) -> None:
    requests = mixed()
    run = simulate(requests, name, engine(context_tokens=16_384))
    assert [record.request for record in run.requests] == list(requests)
    for record in run.requests:
        assert record.outcome is RequestState.FINISHED
        assert len(record.token_steps) == record.request.output_tokens
        assert record.prompt_computed == record.request.prompt_tokens


@pytest.mark.parametrize("name", ["fifo", "strict", "htb"])
def test_service_is_the_cost_of_what_was_asked_for(name: str) -> None:
    requests = mixed()
    run = simulate(requests, name, engine(context_tokens=16_384))
    total = sum(item.prompt_tokens + 2 * item.output_tokens for item in requests)
    # The last tick is before the end; what came since is on no tick.
    assert run.ticks.service[-1].sum() <= total
    assert run.ticks.service[-1].sum() >= 0.9 * total
    assert (run.ticks.service[1:] >= run.ticks.service[:-1]).all()
    computed = run.batch.prefill_tokens + run.batch.decode_tokens - run.batch.recomputed_tokens
    assert computed == sum(item.prompt_tokens + item.output_tokens - 1 for item in requests)


def test_a_request_alone_takes_exactly_its_steps() -> None:
    run = simulate(stream([request(2.0, prompt=600, output=5)]), "fifo")
    record = run.requests[0]
    # 256 + 256 + 88 prompt tokens, the last of which gives the first token, then four decodes.
    prefill_s = sum(STEP.predict(tokens, 0, 0) for tokens in (256, 256, 88))
    assert run.step_ends_s[record.token_steps[0]] == pytest.approx(2.0 + prefill_s)
    assert run.end_s == pytest.approx(2.0 + prefill_s + 4 * STEP.predict(0, 1, 0))
    assert run.busy_s == pytest.approx(run.end_s - 2.0)
    assert run.longest_step_s == pytest.approx(STEP.predict(256, 0, 0))


def test_the_machine_idles_until_the_next_arrival() -> None:
    run = simulate(stream([request(0.0, output=1), request(100.0, output=1)]), "htb")
    assert run.step_ends_s[1] == pytest.approx(100.0 + STEP.predict(64, 0, 0))
    assert len(run.ticks.running) == 100


def test_what_can_never_run_fails_and_the_rest_goes_on() -> None:
    run = simulate(stream([request(prompt=2000), request()]), "fifo", engine(context_tokens=1000))
    assert [record.outcome for record in run.requests] == [RequestState.FAILED, RequestState.FINISHED]
    assert figures(run)["failed"] == 1


def test_an_answer_ends_at_the_context_limit() -> None:
    run = simulate(stream([request(prompt=90, output=50)]), "fifo", engine(context_tokens=100, known_lengths=False))
    assert len(run.requests[0].token_steps) == 10


def test_a_short_pool_preempts_and_nothing_is_lost_or_served_twice() -> None:
    # Twenty short answers teach the scheduler to expect short ones; then four long ones outgrow the pool.
    requests = stream([request(output=2) for _ in range(20)], [request(30.0, output=64) for _ in range(4)])
    run = simulate(requests, "fifo", engine(blocks=18, context_tokens=288, known_lengths=False))
    assert all(len(record.token_steps) == record.request.output_tokens for record in run.requests)
    result = figures(run)
    assert result["preemptions"] == result["engine"]["preemptions"] > 0
    computed = result["engine"]["prefill_tokens"] + result["engine"]["decode_tokens"]
    needed = sum(item.prompt_tokens + item.output_tokens - 1 for item in requests)
    assert computed - needed == result["engine"]["recomputed_tokens"] > 0
    assert result["engine"]["recomputed_tokens"] <= result["engine"]["lost_tokens"]
    assert result["engine"]["recomputed_over_all_tokens"] == pytest.approx((computed - needed) / computed, abs=1e-6)
    assert run.ticks.service[-1].sum() <= sum(item.prompt_tokens + 2 * item.output_tokens for item in requests)


def test_staging_takes_its_time_before_a_prompt_may_run() -> None:
    machine = engine()
    slow = type(machine)(**{name: getattr(machine, name) for name in machine.__slots__} | {"staging_s": 0.5})
    run = Simulation(stream([request(), request()]), slow, policy("fifo")).run()
    assert [record.admitted_s for record in run.requests] == [pytest.approx(0.5), pytest.approx(1.0)]


def test_a_run_can_be_cut_off() -> None:
    run = simulate(stream([request(output=1000)]), "fifo", until_s=1.0)
    assert run.requests[0].outcome is None
    assert 1.0 <= run.end_s < 1.1


class Mute:
    """A discipline that keeps what it gets."""

    def __getattr__(self, name: str) -> object:
        return lambda *_, **__: None

    def upcoming(self, *_: object) -> list[int]:
        return []

    def __len__(self) -> int:
        return 1


def test_a_discipline_that_gives_nothing_is_found_out() -> None:
    broken = type(policy("fifo"))(name="mute", make=lambda *_: cast(Qdisc, Mute()))
    with pytest.raises(SimulationStuck, match="1 requests wait at"):
        Simulation(stream([request()]), engine(), broken).run()


@pytest.mark.parametrize("name", ["fifo", "strict", "htb"])
def test_the_same_stream_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    outputs = []
    for attempt in ("first", "second"):
        run = simulate(mixed(), name, engine(context_tokens=16_384, known_lengths=False))
        path = tmp_path / attempt
        write_requests(path, run)
        outputs.append((orjson.dumps(figures(run)), path.read_bytes()))
    assert outputs[0] == outputs[1]


def test_requests_written_are_a_trace_again(tmp_path: Path) -> None:
    requests = mixed()
    path = tmp_path / "requests.csv"
    write_requests(path, simulate(requests, "fifo", engine(context_tokens=16_384)))
    again = mix([(parse_source(str(path)), read_trace(path))], seed=7)
    assert [(r.prompt_tokens, r.output_tokens, r.priority, r.tenant, r.flow) for r in again] == [
        (r.prompt_tokens, r.output_tokens, r.priority, r.tenant, r.flow) for r in requests
    ]
    assert [r.arrival_s for r in again] == pytest.approx([r.arrival_s for r in requests], abs=1e-6)


def test_steps_that_differ_from_the_guess_are_learnt() -> None:
    machine = engine(known_lengths=False)
    twice = LinearStepTime(20e-3, 0.1e-3, 0.4e-3, 0.0)
    slow = type(machine)(**{name: getattr(machine, name) for name in machine.__slots__} | {"step_time": twice})
    run = Simulation(stream([request() for _ in range(50)]), slow, policy("fifo")).run()
    assert run.batch.step_time.model.predict(0, 8, 8 * 64) == pytest.approx(twice.predict(0, 8, 0), rel=0.1)


def test_classes_are_all_there() -> None:
    assert {item.priority for item in mixed()} == {P0, P1, P2, P3}
