"""Which payload has to go first when there is no room for all: the one that is likely to run last.

Knows tenants, their flows and how much each has resident. Does not know classes, schedules or records. Pure and
synchronous.

The newest of the longest flow of the largest tenant. Fair queueing serves flows in turn, so the end of the longest
backlog runs last whatever the policy is (the kernel's `sch_sfq` drops there too, for this reason). It needs no look at
the schedule, which another thread owns; and who has little waiting keeps it all, however much comes from others. Two
levels, since turns are taken between tenants first: else one with a flow for each request would look small.

A guess: a policy that is not fair (`fifo`), or an order within a flow that is not that of arrival (`edf`, `sjf`), makes
it wrong sometimes, which costs reading a payload once more.
"""

from collections import OrderedDict
from typing import Generic, TypeVar

from workers.intake.longest import Longest

__all__ = ["EvictionOrder"]

T = TypeVar("T")


class _Tenant(Generic[T]):
    __slots__ = ("flows", "sizes")

    def __init__(self) -> None:
        self.flows: dict[str, OrderedDict[T, int]] = {}
        """Of each: what it has, oldest first, with sizes."""
        self.sizes: Longest[str] = Longest()


class EvictionOrder(Generic[T]):
    """Of items, each in it once. A tenant or flow that has nothing resident is forgotten."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant[T]] = {}
        self._sizes: Longest[str] = Longest()

    def add(self, tenant: str, flow: str, item: T, size: int, *, oldest: bool = False) -> None:
        """Behind all that its flow has, or before it (`oldest`)."""
        held = self._tenants.get(tenant)
        if held is None:
            held = self._tenants[tenant] = _Tenant()
        items = held.flows.get(flow)
        if items is None:
            items = held.flows[flow] = OrderedDict()
        items[item] = size
        if oldest:
            items.move_to_end(item, last=False)
        held.sizes.grow(flow, size)
        self._sizes.grow(tenant, size)

    def remove(self, tenant: str, flow: str, item: T) -> None:
        held = self._tenants[tenant]
        items = held.flows[flow]
        size = items.pop(item)
        held.sizes.shrink(flow, size)
        self._sizes.shrink(tenant, size)
        if not items:
            del held.flows[flow]
            if not held.flows:
                del self._tenants[tenant]

    def first(self) -> T:
        """The one that goes first. There must be one."""
        held = self._tenants[self._sizes.longest()]
        return next(reversed(held.flows[held.sizes.longest()]))
