"""A phase of `bench urgent` on a broker: what an urgent request met, and where its time went."""

import pytest
from rich.console import Console

from workers.bench.urgent import UrgentLoad, run_phase
from workers.bench.urgent_figures import check_load, phase_figures, ttft_parts
from workers.configuration.config import WorkerConfig, load_config
from workers.models.loaded_model import LoadedModel

pytestmark = [pytest.mark.broker, pytest.mark.model]

LOAD = UrgentLoad(
    batch=10,
    urgent=2,
    batch_prompt_tokens=(16, 32),
    batch_output_tokens=12,
    urgent_prompt_tokens=20,
    urgent_output_tokens=2,
    first_after_s=0.0,
    interval_s=0.0,
)


async def test_urgent_requests_meet_a_full_engine_and_their_time_is_accounted_for(
    worker_config: WorkerConfig, model: LoadedModel
) -> None:
    settings = worker_config.model_dump(include={"kafka"})
    config = load_config(settings | {"engine": {"dtype": "float32", "max_sequences": 3}})
    phase = await run_phase("htb", config, model, LOAD, Console(quiet=True))
    assert [request.urgent for request in phase.requests] == [False] * 10 + [True] * 2
    assert check_load(phase, slots=True).waiting >= 1
    assert {request.output_tokens for request in phase.requests} == {12, 2}
    for request in phase.requests[10:]:
        parts = ttft_parts(request, phase.steps)
        assert min(parts.values()) >= -0.001, "the clocks of spans and of the client are read a moment apart"
        assert sum(parts.values()) == pytest.approx(request.ttft_s)
    figures = phase_figures(phase)
    assert figures["batch_tokens_s"] > 0
    assert figures["steps"] >= 12
