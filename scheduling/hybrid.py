"""P0 first, P1 and P2 by weighted fair queueing, P3 when the machine would not be missed, or has waited long enough.

Knows classes, weights and arrival times. Does not know tenants or rates.

Algorithm: P0 goes whenever it has a request. The others take turns by start-time fair queueing (`scheduling.wfq`); P3
takes part only while P0 and P1 have nothing queued, or when its oldest request has waited longer than `max_wait_s`
(looked at on dequeue; the tree's, or `_MAX_WAIT_S`).

Source: the usual composition in published LLM gateways, and Cisco's class-based queueing with a low-latency queue. Why:
what many would build first; beside `htb` it shows what guarantees and limits add.

Advantage: urgent requests wait for nobody, batch never starves for ever, four lines to explain. Drawback: P0 is bounded
by nothing and can starve all others; P3's service comes in bursts after `max_wait_s`; in a class the heaviest sender
wins. Limits: as `wfq`.
"""

from collections.abc import Iterator

from scheduling.class_turns import ClassTurns
from scheduling.index import Index
from scheduling.priority import PriorityClass
from scheduling.tree import TreeConfig

__all__ = ["Hybrid"]

_MAX_WAIT_S = 30.0
"""Of P3, where the tree names none: the threshold at which `aging` lets P1 rise, the longest of its three."""
_P0, _P1, _P3 = int(PriorityClass.P0), int(PriorityClass.P1), int(PriorityClass.P3)


class Hybrid(ClassTurns):
    """Implements `scheduling.discipline.Discipline[int]`."""

    def __init__(self, index: Index, tree: TreeConfig) -> None:
        super().__init__(index, tree, 1, outside=1 << _P0)
        self._arrival_s = index.arrival_s
        self._max_wait_s = _max_wait_s(tree)

    def choose(self, now: float, blocked: int) -> int | None:
        urgent, online, background = self._queues[_P0], self._queues[_P1], self._queues[_P3]
        if urgent.count and not blocked >> _P0 & 1:
            return _P0
        if background.count and (urgent.count or online.count):
            waited_s = now - self._arrival_s[background.head]
            if waited_s <= self._max_wait_s:
                # Where P0 and P1 wait for room, P3 may still be what the engine can take: then nobody is kept waiting.
                before = super().choose(now, blocked | 1 << _P3)
                if before is not None:
                    return before
        return super().choose(now, blocked)

    def pick_strict(self, now: float, blocked: int) -> int | None:
        return self.first_of(_P0, blocked)

    def order(self, skip: int) -> Iterator[int]:
        """P3 last."""
        if not skip >> _P0 & 1:
            yield from self.rows_of(_P0)
        yield from super().order(skip | 1 << _P3)
        if not skip >> _P3 & 1:
            yield from self.rows_of(_P3)

    def reload(self, config: TreeConfig, now: float) -> None:
        super().reload(config, now)
        self._max_wait_s = _max_wait_s(config)


def _max_wait_s(tree: TreeConfig) -> float:
    for config in tree.walk():
        if config.priority is PriorityClass.P3 and config.max_wait_s is not None:
            return config.max_wait_s
    return _MAX_WAIT_S
