"""Shortest job first: the request of the least predicted cost goes, whoever sent it.

Knows predicted costs. Does not know classes (but for their room), tenants or time.

Algorithm: a heap a class by predicted cost (uncached prompt + predicted output), ties by arrival; the least head of
the classes that have room. A cost is read when the row is queued; a better prediction at staging does not move it.

Source: Smith, "Various optimizers for single-stage production", 1956; for LLMs with predicted lengths Qiu et al.,
"Efficient Interactive LLM Serving with Proxy Model-based Sequence Length Prediction", 2024. Why: the least mean waiting
time any order can reach, so it shows what fairness costs in the mean.

Advantage: least mean latency. Drawback: long requests starve while short ones come; as good as its prediction; who
splits his work wins. Limits: O(log n) a decision, about 120 bytes a row.
"""

from collections.abc import Iterator
from heapq import merge

from scheduling.class_queues import ClassQueues
from scheduling.index import Index
from scheduling.keyed_rows import KeyedRows

__all__ = ["Sjf", "rows_by_cost"]


def rows_by_cost(index: Index) -> KeyedRows:
    """Queues share one: it has a column of all rows."""
    return KeyedRows(lambda row: float(index.predicted_cost(row)))


class Sjf(ClassQueues):
    """Implements `scheduling.discipline.Discipline[int]`."""

    def __init__(self, index: Index, rows: KeyedRows | None = None) -> None:
        super().__init__(index, rows or rows_by_cost(index))

    def choose(self, now: float, blocked: int) -> int | None:
        heads = [
            (queue.heap[0], priority)
            for priority, queue in enumerate(self._queues)
            if queue.count and not blocked >> priority & 1
        ]
        return min(heads)[1] if heads else None

    def order(self, skip: int) -> Iterator[int]:
        streams = [self.rows_of(priority) for priority in range(len(self._queues)) if not skip >> priority & 1]
        return merge(*streams, key=lambda row: (self._index.predicted_cost(row), self._rows.number[row]))
