"""The end of a run that was cancelled, as it is written: for the workers, and for whoever reads the replies.

Knows the two records and their order. Does not know when a run has come that far (`topics.jobs.cancelling`).
"""

from topics.catalogue import Catalogue
from topics.control_log import control_record
from topics.control_records import CancelOrder
from topics.jobs.announcements import cancel_record, write_records
from topics.jobs.records import JobOrder, JobRun
from topics.jobs.row_set import RowSet
from topics.kafka_settings import KafkaSettings
from topics.replies import OutboundRecord

__all__ = ["end_run", "order_end"]


async def order_end(settings: KafkaSettings, catalogue: Catalogue, job_id: str, expires_at_ms: int) -> int:
    """Order the workers to end what was sent of a job; the order's offset. Raises as `write_records`.

    `expires_at_ms`: when the run's window closes. Rows carry it as their deadline, so that no worker starts one later,
    whatever it remembers.
    """
    (place,) = await write_records(settings, "cancel", [_order(catalogue, job_id, expires_at_ms)])
    return place.offset


async def end_run(settings: KafkaSettings, catalogue: Catalogue, order: JobOrder, run: JobRun, unsent: RowSet) -> int:
    """Nothing of this run is sent any more: order the workers to end what was, and say that it is over.

    Returns the order's offset. Raises as `write_records`.
    """
    said = cancel_record(catalogue.replies, order, run.run, unsent)
    ordered, _ = await write_records(settings, "cancel", [_order(catalogue, run.job_id, run.expires_at_ms), said])
    return ordered.offset


def _order(catalogue: Catalogue, job_id: str, expires_at_ms: int) -> OutboundRecord:
    return control_record(catalogue, CancelOrder(scope="job", name=job_id, expires_at_ms=expires_at_ms))
