"""The class tree's configuration: who shares with whom, and by how much. Defaults are in `scheduling.default_tree`.

Knows names, weights, rates, limits and SLOs, and refuses a tree whose promises don't add up. Does not know rows,
buckets or time; `scheduling.htb` turns it into them. Everything is frozen and validated when it is made.

A node is called a class, as in tc. A class either stands for a priority class (it has `priority`, and its tenants
appear below it from the template `tenants`) or groups other classes (it has `children`). Rates are shares of the
parent's rate or cost units a second; the root's rate is the machine's measured capacity.

Soft limits (`rate`, the weights) say who goes first and never leave the machine idle. Hard limits (`ceil`,
`lendable`, `borrow_limit`) may: the defaults set none.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf

from scheduling.priority import PriorityClass

__all__ = [
    "MAX_LEVELS",
    "ClassConfig",
    "FlowOrder",
    "LeafConfig",
    "Rate",
    "Slo",
    "TenantsConfig",
    "TreeConfig",
    "TreeError",
    "rates",
]

MAX_LEVELS = 8
"""Levels of a tree from the root to a priority class; the kernel's TC_HTB_MAXDEPTH."""
_SLACK = 1e-9
"""Rounding of sums of shares."""


class TreeError(ValueError):
    """A class tree that can't hold what it promises, or makes no sense. The message names the class and the sum."""


class FlowOrder(Enum):
    """The order of one flow's requests among themselves."""

    FIFO = "fifo"
    """As they came."""
    EDF = "edf"
    """Earliest deadline of the first token first; without one, arrival + the class's TTFT SLO."""
    SJF = "sjf"
    """Least predicted cost first."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Exactly one of: a share of the parent's rate (0 … 1), or cost units a second."""

    share: float | None = None
    units_s: float | None = None

    def __post_init__(self) -> None:
        if (self.share is None) == (self.units_s is None):
            raise TreeError(f"a rate is either a share or units a second, got {self.share=}, {self.units_s=}")
        value = self.share if self.share is not None else self.units_s
        if value is None or not 0 <= value < inf or (self.share or 0) > 1:
            raise TreeError(f"{self}: a share lies between 0 and 1, units a second from 0 up")

    def of(self, parent_units_s: float) -> float:
        """In cost units a second, under a parent of that rate."""
        if self.share is not None:
            return self.share * parent_units_s
        assert self.units_s is not None
        return self.units_s

    def __str__(self) -> str:
        return f"{self.share:.1%}" if self.share is not None else f"{self.units_s:g} units/s"


@dataclass(frozen=True, slots=True)
class Slo:
    """Service level objectives in seconds; None is none. They order and are measured; they never expire anything."""

    ttft_s: float | None = None
    """To the first token."""
    tpot_s: float | None = None
    """A further token."""
    e2e_s: float | None = None
    """To the last token."""
    gap_s: float | None = None
    """The longest pause between two tokens, time in which it is suspended included."""

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s", "e2e_s", "gap_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < inf:
                raise TreeError(f"SLO {name} is {value}: it must be above 0 seconds; leave it out for none")

    def ttft_deadline_s(self, arrival_s: float) -> float:
        """When the first token is due, `inf` without an SLO."""
        return inf if self.ttft_s is None else arrival_s + self.ttft_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafConfig:
    """What orders one tenant's requests."""

    policy: str = "sfq"
    """Any policy of `scheduling.policies`: `sfq`, `fifo`, …"""
    order: FlowOrder = FlowOrder.FIFO
    """Inside a flow."""
    quantum: int = 1024
    """Cost units a flow may run ahead in its turn."""
    exact_flows: int = 65_536
    """Flows with a queue of their own; beyond, flows share hashed queues."""
    hashed_queues: int = 1024
    """So many of them."""
    perturb_s: float = 60.0
    """How often the hash is salted anew, so that two flows don't collide for ever."""
    debt_half_life_s: float = 60.0
    """A flow's debt outlives its emptying, and halves in this time."""
    prefix_look: int = 8
    """Of so many flows that are due in the same round, the one whose next request finds most of its prompt in the
    prefix cache goes first; 1: nobody looks."""
    urgent_slack_s: float = 0.1
    """Where the next request of a flow that is due has less time left to its first token's deadline than this, only
    such flows are looked at: the SLO first, the cache second."""

    def __post_init__(self) -> None:
        for name in ("quantum", "exact_flows", "hashed_queues", "prefix_look"):
            if getattr(self, name) < 1:
                raise TreeError(f"leaf {name} is {getattr(self, name)}: at least 1")
        for name in ("perturb_s", "debt_half_life_s"):
            if not getattr(self, name) > 0:
                raise TreeError(f"leaf {name} is {getattr(self, name)}: it must be above 0 seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantsConfig:
    """The template from which a class's tenants appear. They share what the class gets, by weight."""

    weight: float = 1.0
    """Of a tenant not named in `weights`."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Tenant → its weight."""
    quantum: int = 1024
    """Cost units a tenant of weight 1 may run ahead in its turn."""
    leaf: LeafConfig = LeafConfig()
    """How the requests of one tenant are ordered."""

    def __post_init__(self) -> None:
        for tenant, weight in ("(default)", self.weight), *self.weights.items():
            if not 0 < weight < inf:
                raise TreeError(f"weight of tenant {tenant} is {weight}: it must be above 0")
        if self.quantum < 1:
            raise TreeError(f"tenants' quantum is {self.quantum}: at least 1")

    def weight_of(self, tenant: str) -> float:
        return self.weights.get(tenant, self.weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassConfig:
    """One class: a priority class with its tenants, or a group of classes."""

    name: str
    """Your own word for it, in logs and metrics."""
    priority: PriorityClass | None = None
    """p0 … p3: whose requests it gets. A group has `children` instead."""
    weight: float = 1.0
    """Of its share among its siblings, where they have no explicit rate."""
    rate: Rate | None = None
    """Soft guarantee. None: this class's part, by weight, of what its siblings' explicit rates leave."""
    ceil: Rate | None = None
    """Hard limit on all it runs, borrowed or not. None: no limit."""
    burst_s: float = 10.0
    """Seconds of its own rate a class may save up; never less than the tree's `largest_item`."""
    strict_limit: Rate | None = None
    """While it runs less than this, it goes before everybody (low-latency queueing); above, it is an ordinary class."""
    strict_burst_s: float = 2.0
    """Seconds of `strict_limit` that may be saved up."""
    lendable: float = 1.0
    """Hard: which part of its idle rate others may run on."""
    borrow_limit: float | None = None
    """Hard: what it may run on others' rate, as a multiple of its own rate. None: no limit."""
    prio: int = 1
    """Among classes of one level, lower goes first, 0 … 7. Equal shares by quantum."""
    quantum: int | None = None
    """Cost units it may run ahead in its turn. None: by weight, from the tree's `quantum`."""
    max_wait_s: float | None = None
    """A request that waited longer goes first in its class, and may run on `promote_share`. None: never."""
    slo: Slo = Slo()
    """Its objectives."""
    tenants: TenantsConfig = TenantsConfig()
    """How its tenants share."""
    children: tuple["ClassConfig", ...] = ()
    """The classes of a group: what one leaves idle they lend to each other first."""

    def __post_init__(self) -> None:
        if (self.priority is None) == (not self.children):
            raise TreeError(f"class {self.name}: it has either a priority class or children")
        if not 0 < self.weight < inf:
            raise TreeError(f"class {self.name}: weight is {self.weight}, it must be above 0")
        for name in ("burst_s", "strict_burst_s"):
            if not 0 <= getattr(self, name) < inf:
                raise TreeError(f"class {self.name}: {name} is {getattr(self, name)}, from 0 up")
        if not 0 <= self.lendable <= 1:
            raise TreeError(f"class {self.name}: lendable is {self.lendable}, between 0 and 1")
        if self.borrow_limit is not None and self.borrow_limit < 0:
            raise TreeError(f"class {self.name}: borrow_limit is {self.borrow_limit}, from 0 up")
        if not 0 <= self.prio <= 7:
            raise TreeError(f"class {self.name}: prio is {self.prio}, between 0 and 7")
        if self.quantum is not None and self.quantum < 1:
            raise TreeError(f"class {self.name}: quantum is {self.quantum}, at least 1")
        if self.max_wait_s is not None and not self.max_wait_s > 0:
            raise TreeError(f"class {self.name}: max_wait_s is {self.max_wait_s}, above 0; leave it out for none")
        if self.strict_limit is not None and self.priority is None:
            raise TreeError(f"class {self.name}: strict_limit is for a priority class, not for a group")

    def walk(self) -> Iterator["ClassConfig"]:
        """This class and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeConfig:
    """The whole tree. Raises `TreeError` if it is over-committed, too deep or ambiguous."""

    classes: tuple[ClassConfig, ...]
    """Below the root."""
    capacity_units_s: float = 1000.0
    """The machine's cost units a second until it is measured. It resolves shares and blocks nobody."""
    largest_item: int = 8192
    """Cost units of the largest request that is ordinary here: the floor of every burst."""
    quantum: int = 512
    """Cost units in a turn of a class of weight 1."""
    promote_share: float = 0.05
    """What requests past their class's `max_wait_s` may take out of turn, as a share of capacity."""
    initial_fill: float = 0.5
    """Buckets start this full: after a restart nobody knows who had used their burst."""

    def __post_init__(self) -> None:
        if not self.classes:
            raise TreeError("a class tree needs at least one class")
        if not 0 < self.capacity_units_s < inf:
            raise TreeError(f"capacity_units_s is {self.capacity_units_s}: it must be above 0")
        for name in ("largest_item", "quantum"):
            if getattr(self, name) < 1:
                raise TreeError(f"{name} is {getattr(self, name)}: at least 1")
        for name in ("promote_share", "initial_fill"):
            if not 0 <= getattr(self, name) <= 1:
                raise TreeError(f"{name} is {getattr(self, name)}: between 0 and 1")
        self._check_names()
        _check_load("the root", self.classes, self.capacity_units_s)
        _check_depth(self.classes, level=2)

    def _check_names(self) -> None:
        names: set[str] = set()
        priorities: dict[PriorityClass, str] = {}
        for config in self.walk():
            if config.name in names:
                raise TreeError(f"two classes are called {config.name}")
            names.add(config.name)
            if config.priority is None:
                continue
            if config.priority in priorities:
                both = f"{priorities[config.priority]} and {config.name}"
                raise TreeError(f"{config.priority.label} is served by {both}: it has one place in the tree")
            priorities[config.priority] = config.name

    def walk(self) -> Iterator[ClassConfig]:
        """All classes, parents first."""
        for config in self.classes:
            yield from config.walk()

    def of(self, priority: PriorityClass) -> ClassConfig:
        """The class that serves a priority class. Raises `TreeError` if none does."""
        for config in self.walk():
            if config.priority is priority:
                return config
        served = ", ".join(config.priority.label for config in self.walk() if config.priority is not None)
        raise TreeError(f"the tree has no class for {priority.label}: it serves {served}")


def rates(children: tuple[ClassConfig, ...], parent_units_s: float) -> list[float]:
    """Each child's rate in cost units a second: its own, or its weight's part of what explicit rates leave."""
    explicit = [None if child.rate is None else child.rate.of(parent_units_s) for child in children]
    left = max(0.0, parent_units_s - sum(rate for rate in explicit if rate is not None))
    weights = sum(child.weight for child, rate in zip(children, explicit, strict=True) if rate is None)
    return [
        left * child.weight / weights if rate is None else rate for child, rate in zip(children, explicit, strict=True)
    ]


def _check_load(name: str, children: tuple[ClassConfig, ...], units_s: float) -> None:
    """Σ rate ≤ parent and Σ strict_limit + Σ rate of the non-strict ≤ parent, at every node."""
    resolved = rates(children, units_s)
    promises = list(resolved)
    strict = list(resolved)
    for number, child in enumerate(children):
        if child.strict_limit is not None:
            strict[number] = child.strict_limit.of(units_s)
    for what, parts in (("rates", promises), ("strict limits and other rates", strict)):
        total = sum(parts)
        if total > units_s * (1 + _SLACK):
            terms = " + ".join(
                f"{child.name} {part / units_s:.1%}" for child, part in zip(children, parts, strict=True)
            )
            raise TreeError(
                f"{name} is over-committed: its {what} are {terms} = {total / units_s:.1%} of its own "
                f"{units_s:g} units/s; lower them to 100 % or less, or guarantees would silently break"
            )
    for child, rate in zip(children, resolved, strict=True):
        if child.ceil is not None and child.ceil.of(units_s) < rate * (1 - _SLACK):
            raise TreeError(f"class {child.name}: its ceil {child.ceil} is below its rate {rate:g} units/s")
        if child.children:
            _check_load(f"class {child.name}", child.children, rate)


def _check_depth(children: tuple[ClassConfig, ...], level: int) -> None:
    for child in children:
        if level > MAX_LEVELS:
            raise TreeError(f"class {child.name} is on level {level} of at most {MAX_LEVELS}: flatten the tree")
        _check_depth(child.children, level + 1)
