"""A study: one stream of requests under several policies at several loads, each run in a process of its own.

Knows how a policy's name, a load and a seed become a `Simulation`, and where a run's files go. Does not know the
command line.

**Capacity** is measured, not guessed (`workers.runs.capacity`), under `fifo`. The class tree's shares are shares of it.

**Alone.** For slowdowns, the same arrivals of one class, or one tenant, run by themselves: on the whole machine, and,
for a tenant, on a machine slowed down to its share (its class's rate × its part of the class's weights). Slots and
blocks are not divided: a slowed-down machine with all its slots is the stricter comparison.
"""

import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from scheduling.policies import make_qdisc
from scheduling.priority import PriorityClass
from scheduling.tree import Slo, TreeConfig, rates
from workers.engine.assembly import strict_classes
from workers.runs.capacity import Capacity, capacity_of
from workers.runs.run_record import Account, RunRecord
from workers.runs.run_results import Figures, request_times, run_figures, write_requests
from workers.runs.simulation import EngineModel, Policy, Simulation
from workers.runs.step_models import StepDuration
from workers.runs.trace_mix import ArrivingRequest, scaled

__all__ = [
    "RunFailed",
    "RunTask",
    "Study",
    "alone_tasks",
    "measure_capacity",
    "run_tasks",
    "slowdowns",
    "strict_classes",
]


@dataclass(frozen=True, slots=True)
class Study:
    """What all runs of a study share."""

    requests: tuple[ArrivingRequest, ...]
    engine: EngineModel
    tree: TreeConfig
    out: Path | None
    """Where runs write their files; None: nowhere."""
    plots: bool = True


@dataclass(frozen=True, slots=True)
class RunTask:
    policy: str
    load: float | None
    """None: arrivals as recorded."""
    factor: float
    alone: PriorityClass | str | None = None
    """Only this class's, or this tenant's, requests."""
    slowed: float = 1.0
    """Steps take so many times as long."""

    @property
    def load_text(self) -> str:
        return "as recorded" if self.load is None else f"{self.load:g}"

    @property
    def stem(self) -> str:
        """Of the names of the run's files."""
        return f"{self.policy}-{self.load_text.replace(' ', '-')}"


def slo_of(tree: TreeConfig, priority: PriorityClass) -> Slo:
    return tree.of(priority).slo


def measure_capacity(study: Study, on_progress: Callable[[int], None] | None = None) -> Capacity:
    return capacity_of(_simulate(study, RunTask("fifo", None, 0.0), on_progress), study.engine.cost)


# --- many runs --------------------------------------------------------------------------------------------------------


class RunFailed(Exception):
    """A run's process died. Its traceback is on standard error."""


def run_tasks(
    study: Study, tasks: Sequence[RunTask], jobs: int, on_progress: Callable[[int, int], None]
) -> list[Figures]:
    """Figures of each task, in their order. `on_progress(task, ended requests)` is called now and then.

    `jobs` processes take one task after the other: runs share nothing, so their order changes nothing. Raises
    `RunFailed`.
    """
    context = multiprocessing.get_context("spawn")
    results: dict[int, Figures] = {}
    next_place = 0
    crew: dict[Connection, SpawnProcess] = {}
    try:
        for _ in range(min(jobs, len(tasks))):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve_tasks, args=(theirs, study))
            process.start()
            theirs.close()
            crew[ours] = process
            ours.send((next_place, tasks[next_place]))
            next_place += 1
        while len(results) < len(tasks):
            for ready in wait(list(crew)):
                assert isinstance(ready, Connection)
                try:
                    place, message = ready.recv()
                except EOFError:
                    crew[ready].join()
                    raise RunFailed(f"a run's process ended with exit code {crew[ready].exitcode}") from None
                if isinstance(message, int):
                    on_progress(place, message)
                    continue
                results[place] = message
                if next_place < len(tasks):
                    ready.send((next_place, tasks[next_place]))
                    next_place += 1
    finally:
        for ours, process in crew.items():
            ours.close()
            process.terminate()
            process.join()
    return [results[place] for place in range(len(tasks))]


def _serve_tasks(parent: Connection, study: Study) -> None:
    """A run's process: takes (place, task), sends (place, ended requests) and at last (place, figures), until it is
    ended by the parent."""
    while True:
        try:
            place, task = parent.recv()
        except EOFError:
            return
        parent.send((place, _run_task(study, task, partial(_report, parent, place))))


def _report(parent: Connection, place: int, ended: int) -> None:
    parent.send((place, ended))


def _run_task(study: Study, task: RunTask, report: Callable[[int], None]) -> Figures:
    hundredth = max(1, len(study.requests) // 100)
    reported = 0

    def on_progress(ended: int) -> None:
        nonlocal reported
        if ended >= reported + hundredth:
            reported = ended
            report(ended)

    run = _simulate(study, task, on_progress)
    figures = run_figures(run, partial(slo_of, study.tree), partial(_weight, study.tree))
    if study.out is not None and task.alone is None:
        write_requests(study.out / f"requests-{task.stem}.csv", run)
        if study.plots:
            # Imported here: matplotlib is an extra, and who wants no plots needs none.
            from workers.runs.run_plots import draw_run

            picture = draw_run(f"{task.policy}, load {task.load_text}", run, request_times(run))
            (study.out / f"{task.stem}.png").write_bytes(picture)
    return figures


def _simulate(study: Study, task: RunTask, on_progress: Callable[[int], None] | None) -> RunRecord:
    requests = scaled(_only(study.requests, task.alone), task.factor)
    engine = study.engine
    if task.slowed != 1.0:
        engine = replace(
            engine,
            step_time=SlowedStepTime(engine.step_time, task.slowed),
            first_guess=replace(
                engine.first_guess,
                **{
                    name: getattr(engine.first_guess, name) * task.slowed
                    for name in ("fixed_s", "per_prefill_token_s", "per_decode_sequence_s", "per_context_token_s")
                },
            ),
        )
    policy = Policy(
        name=task.policy,
        make=lambda index, cost: make_qdisc(task.policy, index, study.tree, cost),
        strict_classes=strict_classes(task.policy, study.tree),
    )
    return Simulation(requests, engine, policy, partial(slo_of, study.tree)).run(on_progress)


def _only(requests: Sequence[ArrivingRequest], alone: PriorityClass | str | None) -> Sequence[ArrivingRequest]:
    if alone is None:
        return requests
    if isinstance(alone, PriorityClass):
        return [request for request in requests if request.priority == alone]
    return [request for request in requests if request.tenant == alone]


def _weight(tree: TreeConfig, account: Account) -> float:
    return tree.of(account[0]).tenants.weight_of(account[1])


@dataclass(frozen=True, slots=True)
class SlowedStepTime:
    """A machine that takes `factor` times as long for each step."""

    model: StepDuration
    factor: float

    def predict(self, prefill_tokens: int, decode_sequences: int, context_tokens: int) -> float:
        return self.factor * self.model.predict(prefill_tokens, decode_sequences, context_tokens)


# --- slowdown against alone -------------------------------------------------------------------------------------------


def alone_tasks(study: Study, load: float | None, factor: float) -> list[RunTask]:
    """Each class alone; each tenant alone, and alone on a machine of its share."""
    accounts = sorted({(request.priority, request.tenant) for request in study.requests})
    classes = sorted({priority for priority, _ in accounts})
    shares = tenant_shares(study.tree, accounts)
    tasks = [RunTask("fifo", load, factor, alone=priority) for priority in classes]
    tasks += [RunTask("fifo", load, factor, alone=tenant) for tenant in sorted(shares)]
    tasks += [RunTask("fifo", load, factor, alone=tenant, slowed=1 / share) for tenant, share in sorted(shares.items())]
    return tasks


def tenant_shares(tree: TreeConfig, accounts: Sequence[Account]) -> dict[str, float]:
    """Each tenant's part of the machine if everybody is busy: its class's × its part of the class's weights."""
    class_rates = _class_rates(tree)
    shares: dict[str, float] = {}
    present = sum(class_rates[priority] for priority in {priority for priority, _ in accounts})
    for priority, tenant in accounts:
        weights = sum(_weight(tree, other) for other in accounts if other[0] == priority)
        share = class_rates[priority] / present * _weight(tree, (priority, tenant)) / weights
        shares[tenant] = shares.get(tenant, 0.0) + share
    return shares


def _class_rates(tree: TreeConfig) -> dict[PriorityClass, float]:
    """Each class's guaranteed rate in cost units a second."""
    found: dict[PriorityClass, float] = {}
    level = [(tree.classes, tree.capacity_units_s)]
    while level:
        children, parent_s = level.pop()
        for child, rate in zip(children, rates(children, parent_s), strict=True):
            if child.priority is not None:
                found[child.priority] = rate
            level.append((child.children, rate))
    return found


def slowdowns(figures: Figures, tasks: Sequence[RunTask], alone: Sequence[Figures]) -> Figures:
    """Mean and p95 TTFT of each class and tenant ÷ the same alone, for one run's figures."""
    by_class: Figures = {}
    by_tenant: Figures = {}
    for task, single in zip(tasks, alone, strict=True):
        if isinstance(task.alone, PriorityClass):
            label = task.alone.label
            by_class[label] = _ratios(figures["by_class"][label], single, "ttft_slowdown_alone")
            by_class[label]["percentiles_ttft_ms_alone"] = single["percentiles_ttft_ms"]
            by_class[label]["longest_step_ms_alone"] = single["engine"]["longest_step_ms"]
        else:
            assert task.alone is not None
            kind = "ttft_slowdown_alone" if task.slowed == 1.0 else "ttft_slowdown_at_its_share"
            by_tenant.setdefault(task.alone, {}).update(_ratios(figures["by_tenant"][task.alone], single, kind))
    return {"by_class": by_class, "by_tenant": by_tenant}


def _ratios(together: Figures, alone: Figures, name: str) -> Figures:
    if not together["completed"] or not alone["completed"]:
        return {f"mean_{name}": None, f"p95_{name}": None}
    p95 = dict(map(tuple, together["percentiles_ttft_ms"]))[95] / dict(map(tuple, alone["percentiles_ttft_ms"]))[95]
    return {
        f"mean_{name}": round(together["mean_ttft_ms"] / alone["mean_ttft_ms"], 6),
        f"p95_{name}": round(p95, 6),
    }
