"""One run of `headrace bench scheduler`: a queueing discipline at a steady depth, in a process of its own.

Knows disciplines and how to time them. Does not know the other runs.

The queue is filled to the depth. Then each round enqueues one request, dequeues one and charges it once, which is what
is timed; with `IN_FLIGHT` dequeued ones not settled, as in an engine. Putting the row into the index and settling are
timed apart. At the end all is drained, and what was dispatched must be what was enqueued. Memory is what the process
grew by while it was filled, ÷ the depth: index row, names, and the discipline's own.
"""

import argparse
import gc
import heapq
import json
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from random import Random
from time import perf_counter_ns

from scheduling.default_tree import default_tree
from scheduling.index import Index
from scheduling.policies import make_qdisc
from scheduling.priority import PriorityClass
from scheduling.qdisc import EVERYTHING, Qdisc, Room
from scheduling.state import RequestState
from scheduling.tree import ClassConfig, Rate, TreeConfig

__all__ = ["HEAPQ", "IN_FLIGHT", "main"]

HEAPQ = "heapq"
"""The name of the plain priority queue that all are compared with."""
IN_FLIGHT = 64
_FLOWS_A_TENANT = 20
_ROUND_S = 1e-3
"""The clock's step a round: buckets fill and wake-ups fire."""


class PriorityHeap:
    """A plain priority queue, by class and arrival: what one would write in an hour."""

    def __init__(self, index: Index) -> None:
        self._service = index.service
        self._heap: list[tuple[int, int, int]] = []
        self._count = 0

    def enqueue(self, row: int, now: float) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self._service[row], self._count, row))

    def dequeue(self, now: float, room: Room = EVERYTHING) -> int | None:
        return heapq.heappop(self._heap)[2] if self._heap else None

    def charge(self, row: int, cost: int, now: float) -> None:
        """Cost has no say."""

    def settle(self, row: int, now: float) -> None:
        """Nothing to settle."""


def three_levels() -> TreeConfig:
    """The shipped classes in two groups: root → group → class, and tenants and flows below."""
    tree = default_tree(capacity_units_s=1_000_000.0)
    p0, p1, p2, p3 = tree.classes
    urgent = ClassConfig(name="urgent", weight=24, children=(replace(p0, strict_limit=Rate(share=0.5)), p1))
    return replace(tree, classes=(urgent, ClassConfig(name="rest", weight=6, children=(p2, p3))))


class Bench:
    def __init__(self, policy: str, depth: int, flows: int, seed: int) -> None:
        self._random = Random(seed)
        self._flows = flows
        self._index = Index(capacity=depth + 2 * IN_FLIGHT)
        self._qdisc: Qdisc | PriorityHeap = (
            PriorityHeap(self._index) if policy == HEAPQ else make_qdisc(policy, self._index, three_levels())
        )
        self._flying: deque[int] = deque()
        self._now = 0.0
        self.enqueued = self.dispatched = 0

    def new_row(self) -> int:
        flow = self._random.randrange(self._flows)
        return self._index.add(
            origin=PriorityClass(flow & 3),
            tenant=f"tenant-{flow // _FLOWS_A_TENANT}",
            flow=f"user-{flow}",
            prompt_tokens=self._random.randrange(10, 500),
            output_tokens=self._random.randrange(10, 250),
            arrival_s=self._now,
        )

    def fill(self, depth: int) -> None:
        for _ in range(depth):
            self._qdisc.enqueue(self.new_row(), self._now)
        self.enqueued += depth

    def measure(self, rounds: int) -> tuple[list[int], int, int]:
        """Nanoseconds of each round; of all index rows; of all settlements."""
        qdisc, flying = self._qdisc, self._flying
        samples: list[int] = []
        index_ns = settle_ns = 0
        for _ in range(rounds):
            self._now += _ROUND_S
            began = perf_counter_ns()
            row = self.new_row()
            added = perf_counter_ns()
            qdisc.enqueue(row, self._now)
            gone = qdisc.dequeue(self._now)
            assert gone is not None, "idle with work"
            qdisc.charge(gone, 2, self._now)
            served = perf_counter_ns()
            samples.append(served - added)
            flying.append(gone)
            if len(flying) > IN_FLIGHT:
                oldest = flying.popleft()
                before = perf_counter_ns()
                qdisc.settle(oldest, self._now)
                settle_ns += perf_counter_ns() - before
                self._release(oldest)
            index_ns += added - began
        self.enqueued += rounds
        self.dispatched += rounds
        return samples, index_ns, settle_ns

    def drain(self) -> None:
        while (row := self._qdisc.dequeue(self._now)) is not None:
            self.dispatched += 1
            self._qdisc.settle(row, self._now)
            self._release(row)
        while self._flying:
            row = self._flying.popleft()
            self._qdisc.settle(row, self._now)
            self._release(row)
        assert self.dispatched == self.enqueued, f"{self.enqueued} enqueued and {self.dispatched} dispatched"
        assert not len(self._index)

    def _release(self, row: int) -> None:
        self._index.move(row, RequestState.CANCELLED)
        self._index.release(row)


def _resident_bytes() -> int:
    # Imported here: the command's help needs no worker extra.
    import psutil

    gc.collect()
    return int(psutil.Process().memory_info().rss)


def main(arguments: list[str] | None = None, show: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", required=True)
    parser.add_argument("--depth", type=int, required=True)
    parser.add_argument("--flows", type=int, required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    bench = Bench(options.policy, options.depth, options.flows, options.seed)
    before = _resident_bytes()
    bench.fill(options.depth)
    row_bytes = (_resident_bytes() - before) / options.depth
    bench.measure(min(options.requests, 4 * IN_FLIGHT))
    samples, index_ns, settle_ns = bench.measure(options.requests)
    bench.drain()
    samples.sort()
    rounds = len(samples)
    show(
        json.dumps(
            {
                "policy": options.policy,
                "depth": options.depth,
                "flows": options.flows,
                "requests": rounds,
                "mean_us": sum(samples) / rounds / 1000,
                "p50_us": samples[rounds // 2] / 1000,
                "p99_us": samples[rounds * 99 // 100] / 1000,
                "index_us": index_ns / rounds / 1000,
                "settle_us": settle_ns / rounds / 1000,
                "bytes_a_row": row_bytes,
                "dispatched": bench.dispatched,
            }
        )
    )


if __name__ == "__main__":
    main()
