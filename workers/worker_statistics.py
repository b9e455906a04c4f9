"""What a worker tells of itself: its parts' statistics at one moment.

Knows numbers only; `workers.worker` takes them.
"""

from dataclasses import dataclass

from scheduling.priority import PriorityClass
from topics.consumer import ConsumerStatistics
from topics.record_producer import ProducerStatistics
from topics.transactional_replies import TransactionStatistics
from workers.engine.statistics import EngineStatistics
from workers.intake.ingress import IngressStatistics
from workers.intake.payload_source import PayloadSourceStatistics
from workers.intake.residency import ClassResidency

__all__ = ["WorkerStatistics"]


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    engine: EngineStatistics
    """Read from another thread than the engine's own: each figure is right, together they may be a step apart."""
    ingress: IngressStatistics
    residency: dict[PriorityClass, ClassResidency]
    payloads: dict[PriorityClass, PayloadSourceStatistics]
    consumers: dict[PriorityClass, ConsumerStatistics]
    transactions: dict[PriorityClass, TransactionStatistics | None]
    """None: delivery is at least once."""
    deltas: ProducerStatistics
    undelivered_bytes: int
    """Of terminal replies."""
