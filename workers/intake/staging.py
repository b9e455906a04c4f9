"""The staging thread: template, tokenise, hash; one request at a time, most urgent class first.

Knows jobs and who gets the results. Does not know Kafka, scheduling order within a class (the scheduler hands rows out
in its order) or the model. It exists so that neither the event loop nor a step ever pays for tokenisation.
"""

import itertools
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from kvcache.block_hash import BlockHasher
from topics.errors import RequestError
from topics.record import InboundRecord
from workers.intake.prompt import PreparedRequest
from workers.intake.request import Arrival

__all__ = ["Refused", "StageJob", "Staged", "Staging"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StageJob:
    row: int
    arrival: Arrival
    sequence: int = 0
    """Of those that the arrival asks for."""


@dataclass(frozen=True, slots=True)
class Staged:
    job: StageJob
    prepared: PreparedRequest
    block_names: tuple[int, ...] = ()
    """Of what the prompt's whole blocks will contain (`kvcache.block_hash`); none without a prefix cache."""
    output_token_ids: tuple[int, ...] = ()
    """The beginning of the answer, which an earlier attempt has told."""


@dataclass(frozen=True, slots=True)
class Refused:
    job: StageJob
    error: RequestError


@dataclass(order=True, slots=True)
class _Entry:
    urgency: int
    number: int
    work: tuple[StageJob, InboundRecord] | None = field(compare=False)


_LAST = 1 << 30


class Staging:
    """Jobs in, `Staged` or `Refused` out, on one thread of its own.

    Bounded by its caller: the scheduler has at most its staging quota handed out, and what a revocation left behind.
    """

    def __init__(
        self,
        prepare: Callable[[Arrival, InboundRecord, int], PreparedRequest],
        deliver: Callable[[Staged | Refused], None],
        on_broken: Callable[[BaseException], None],
        hasher: BlockHasher | None = None,
    ) -> None:
        """`prepare` makes a sequence of an arrival and its record, and raises `RequestError` for what the client got
        wrong; `deliver` must not block. Without `hasher` nothing is named, and so nothing found in the prefix cache.

        `on_broken` is called from the thread when it ends by an error: nothing will be staged any more.
        """
        self._prepare = prepare
        self._hasher = hasher
        self._deliver = deliver
        self._on_broken = on_broken
        self._stopping = False
        self._jobs: queue.PriorityQueue[_Entry] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._thread = threading.Thread(target=self._run, name="headrace-staging", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: StageJob, record: InboundRecord) -> None:
        self._jobs.put(_Entry(int(job.arrival.origin_class), next(self._numbers), (job, record)))

    def stop(self) -> None:
        """Finish the job at hand, drop the rest, end the thread."""
        self._stopping = True
        self._jobs.put(_Entry(_LAST, next(self._numbers), None))
        self._thread.join()

    def _run(self) -> None:
        try:
            while (work := self._jobs.get().work) is not None and not self._stopping:
                self._deliver(self._stage(*work))
        except BaseException as error:
            log.exception("staging broke")
            self._on_broken(error)

    def _stage(self, job: StageJob, record: InboundRecord) -> Staged | Refused:
        try:
            prepared = self._prepare(job.arrival, record, job.sequence)
            names: list[int] = []
            if self._hasher is not None:
                names = self._hasher.names(prepared.prompt_token_ids, job.arrival.tenant)
            return Staged(job, prepared, tuple(names))
        except RequestError as error:
            return Refused(job, error)
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException:
            # A panic of the tokenizer (Rust) is no Exception. One request's surprise must not stop all others.
            log.exception("staging %s failed", job.arrival.id, extra={"traceparent": job.arrival.headers.traceparent})
            return Refused(job, RequestError.internal("Preparing the prompt failed."))
