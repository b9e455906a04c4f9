"""A small simulated machine for tests, and streams of requests by hand.

Eight slots; a step takes 10 ms, 0.05 ms a prompt token and 0.2 ms a decode: so about 20 requests a second of 64 tokens
in and 16 out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from scheduling.default_tree import default_tree
from scheduling.limits import BatchLimits
from scheduling.policies import make_qdisc
from scheduling.priority import PriorityClass
from scheduling.step_time import LinearStepTime
from scheduling.tree import TreeConfig
from workers.engine.assembly import strict_classes
from workers.runs.run_record import RequestRecord, RunRecord
from workers.runs.run_results import Figures, run_figures
from workers.runs.simulation import EngineModel, Policy, Simulation
from workers.runs.simulation_study import slo_of
from workers.runs.trace_mix import ArrivingRequest

P0, P1, P2, P3 = PriorityClass
STEP = LinearStepTime(10e-3, 0.05e-3, 0.2e-3, 0.0)


def engine(
    *, blocks: int = 4096, step_time: LinearStepTime = STEP, known_lengths: bool = True, **limits: Any
) -> EngineModel:
    settings: dict[str, Any] = {"context_tokens": 8192, "max_sequences": 8, "step_tokens": 256, "staged_rows": 16}
    return EngineModel(
        step_time=step_time,
        first_guess=step_time,
        limits=BatchLimits(**(settings | limits)),
        num_blocks=blocks,
        known_lengths=known_lengths,
    )


def policy(name: str, tree: TreeConfig | None = None) -> Policy:
    tree = tree or default_tree()
    return Policy(
        name=name,
        make=lambda index, cost: make_qdisc(name, index, tree, cost),
        strict_classes=strict_classes(name, tree),
    )


def request(
    arrival_s: float = 0.0,
    priority: PriorityClass = P1,
    tenant: str = "a",
    *,
    prompt: int = 64,
    output: int = 16,
    flow: str | None = None,
) -> ArrivingRequest:
    return ArrivingRequest(0, arrival_s, prompt, output, priority, tenant, flow or tenant)


def stream(*parts: Iterable[ArrivingRequest]) -> tuple[ArrivingRequest, ...]:
    """In order of arrival, and numbered."""
    merged = sorted((item for part in parts for item in part), key=lambda item: item.arrival_s)
    return tuple(replace(item, number=number) for number, item in enumerate(merged))


def simulate(
    requests: Sequence[ArrivingRequest],
    name: str,
    machine: EngineModel | None = None,
    tree: TreeConfig | None = None,
    until_s: float = float("inf"),
) -> RunRecord:
    simulation = Simulation(requests, machine or engine(), policy(name, tree), partial(slo_of, tree or default_tree()))
    run = simulation.run(until_s=until_s)
    simulation.check_integrity()
    return run


def figures(run: RunRecord) -> Figures:
    return run_figures(run, partial(slo_of, default_tree()), lambda _: 1.0)


def of(run: RunRecord, priority: PriorityClass | None = None, tenant: str | None = None) -> list[RequestRecord]:
    return [
        record
        for record in run.requests
        if (priority is None or record.request.priority == priority)
        and (tenant is None or record.request.tenant == tenant)
    ]


def ttft_s(run: RunRecord, record: RequestRecord) -> float:
    assert record.token_steps, f"request {record.request.number} has no token yet"
    return run.step_ends_s[record.token_steps[0]] - record.request.arrival_s
