"""A bare queueing discipline before a constant-rate server, on virtual time.

The server works on up to `slots` requests at once, in rounds: each gets one slice a round, prompts before output, and a
round takes as long as its cost ÷ capacity. What output costs is charged slice by slice, as it is made; how much there
will be, the discipline knows only as a prediction.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf

from scheduling.accounting import AccountedQdisc
from scheduling.index import Index
from scheduling.policies import make_qdisc
from scheduling.priority import PriorityClass
from scheduling.qdisc import EVERYTHING, Room
from scheduling.state import RequestState
from scheduling.tree import ClassConfig, LeafConfig, TenantsConfig, TreeConfig

P0, P1, P2, P3 = PriorityClass
SLICE = 16
"""Cost units of one request in one round."""


@dataclass(frozen=True)
class Job:
    """`output` is what it will cost; `predicted` what the discipline thinks (None: the truth)."""

    priority: PriorityClass = P1
    tenant: str = "a"
    flow: str = "a"
    prompt: int = 10
    output: int = 10
    predicted: int | None = None
    arrival_s: float = 0.0
    ttft_deadline_s: float = inf

    @property
    def cost(self) -> int:
        """Units, all in all."""
        return self.prompt + 2 * self.output

    @property
    def predicted_cost(self) -> int:
        return self.prompt + 2 * (self.output if self.predicted is None else self.predicted)


def add(index: Index, job: Job) -> int:
    return index.add(
        origin=job.priority,
        tenant=job.tenant,
        flow=job.flow,
        prompt_tokens=job.prompt,
        output_tokens=job.output if job.predicted is None else job.predicted,
        arrival_s=job.arrival_s,
        ttft_deadline_s=job.ttft_deadline_s,
    )


def release(index: Index, row: int) -> None:
    index.move(row, RequestState.CANCELLED)
    index.release(row)


def one_class(**changes: object) -> TreeConfig:
    """One class, all the machine; `changes` go to its tenants' leaves."""
    leaf = LeafConfig(**changes)  # type: ignore[arg-type]
    return TreeConfig(
        classes=(ClassConfig(name="only", priority=P1, tenants=TenantsConfig(leaf=leaf)),), largest_item=1000
    )


@dataclass(frozen=True)
class Dispatch:
    job: Job
    at_s: float


@dataclass
class Server:
    """Feeds jobs in as they arrive, and serves them. `dispatched` and `served` are what happened."""

    jobs: Iterable[Job]
    policy: str | Callable[[Index], AccountedQdisc] = "htb"
    tree: TreeConfig = field(default_factory=one_class)
    capacity: float = 1000.0
    slots: int = 1
    room: Room = EVERYTHING

    def __post_init__(self) -> None:
        self.index = Index()
        self.qdisc = (
            make_qdisc(self.policy, self.index, self.tree) if isinstance(self.policy, str) else self.policy(self.index)
        )
        self.now = 0.0
        self.coming = sorted(self.jobs, key=lambda job: job.arrival_s)
        self.coming.reverse()
        self.job_of: dict[int, Job] = {}
        self.left: dict[int, list[int]] = {}
        """By row in service: prompt and output still to be worked off."""
        self.dispatched: list[Dispatch] = []
        self.served: dict[Job, float] = {}
        """Units worked off, with the moment of each slice in `work`."""
        self.work: list[tuple[float, Job, int]] = []
        """(moment, job, units)."""
        self.ended: list[Job] = []

    def run(self, until_s: float = inf) -> "Server":
        """Until the time, or all is done."""
        while self.now < until_s:
            self._arrive()
            self._dispatch()
            if self.left:
                self._round()
            elif self.coming:
                self.now = max(self.now, self.coming[-1].arrival_s)
            else:
                at = self.qdisc.next_event(self.now)
                if at is None:
                    break
                self.now = max(self.now, at)
        return self

    def _arrive(self) -> None:
        while self.coming and self.coming[-1].arrival_s <= self.now:
            job = self.coming.pop()
            row = add(self.index, job)
            self.job_of[row] = job
            self.qdisc.enqueue(row, self.now)

    def _dispatch(self) -> None:
        while len(self.left) < self.slots:
            row = self.qdisc.dequeue(self.now, self.room)
            if row is None:
                return
            job = self.job_of[row]
            self.dispatched.append(Dispatch(job, self.now))
            self.left[row] = [job.prompt, 2 * job.output]

    def _round(self) -> None:
        slices = []
        for row, left in self.left.items():
            part = 0 if left[0] else 1
            units = min(SLICE, left[part])
            left[part] -= units
            slices.append((row, part, units))
        self.now += sum(units for _, _, units in slices) / self.capacity
        for row, part, units in slices:
            job = self.job_of[row]
            self.work.append((self.now, job, units))
            if part:
                self.qdisc.charge(row, units, self.now)
            if not any(self.left[row]):
                del self.left[row]
                self.qdisc.settle(row, self.now)
                release(self.index, row)
                self.ended.append(self.job_of.pop(row))

    def units(self, chosen: Callable[[Job], bool], since_s: float = 0.0, until_s: float = inf) -> int:
        """Units worked off for chosen jobs in a span."""
        return sum(units for at, job, units in self.work if since_s < at <= until_s and chosen(job))


def order(server: Server) -> list[Job]:
    return [dispatch.job for dispatch in server.dispatched]
