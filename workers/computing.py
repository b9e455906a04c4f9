"""The computing half of a worker: its engine on a thread of its own, and the thread that prepares prompts.

Knows how the two are built, started and ended, and what goes in and out: messages in, requests to be begun, prepared
prompts and publications out. Does not know Kafka, attempts, or who reads what is published (`workers.delivery`).

What it is given to call is called from its threads, and must not block.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from topics.errors import RequestError
from topics.record import InboundRecord
from workers.answers.detokenizer import DetokenizerFactory
from workers.configuration.config import WorkerConfig
from workers.engine.assembly import assemble, block_hasher, engine_inbox, step_cap_s
from workers.engine.messages import EngineMessage
from workers.engine.outbox import Outbox
from workers.engine.statistics import EngineStatistics
from workers.engine.thread import EngineThread
from workers.intake.prompt import PreparedRequest, PromptBuilder
from workers.intake.request import Arrival
from workers.intake.staging import Refused, Staged, StageJob, Staging

if TYPE_CHECKING:
    from workers.models.loaded_model import (
        LoadedModel,  # with it comes torch, which a worker of another runner does without
    )

__all__ = ["Computing", "prepare"]

_STUCK_S = 60.0
_STUCK_STEPS = 30
"""Planned steps after which one that still runs is taken for hung."""


class Computing:
    def __init__(
        self,
        config: WorkerConfig,
        model: "LoadedModel",
        *,
        begin: Callable[[StageJob], None],
        staged: Callable[[Staged | Refused], None],
        published: Callable[[], None],
        on_broken: Callable[[str, BaseException], None],
    ) -> None:
        """`begin`: the scheduler has handed this out to be prepared (`stage`) and run. `staged`: its prompt is
        prepared, or can't be. `published`: something is in the outbox. `on_broken`: a thread has ended, and why:
        nothing is computed any more."""
        self.outbox = Outbox(config.egress.max_pending_bytes, published)
        self.new_detokenizer = DetokenizerFactory(model.tokenizer.backend_tokenizer)
        self._inbox = engine_inbox(config.ingress.max_rows)
        self.put: Callable[[EngineMessage], None] = self._inbox.put
        """Tell the engine. From any thread, never blocks. Raises `MailboxFull`."""
        self._builder = builder = PromptBuilder(
            model.tokenizer,
            model.limits,
            model.served_names,
            default_max_tokens=config.model.default_max_tokens,
        )
        hasher = block_hasher(config.kv, model.runner, model.served_names[0], model.dtype)
        self._staging = Staging(
            lambda arrival, record, sequence: prepare(builder, arrival, record, sequence),
            staged,
            partial(on_broken, "staging broke"),
            hasher,
        )
        self.stage: Callable[[StageJob, InboundRecord], None] = self._staging.submit
        """Have a prompt prepared. From any thread."""
        parts = assemble(
            config.engine,
            config.scheduling,
            kv_config=config.kv,
            preemption=config.preemption,
            swap=model.swap,
            runner=model.runner,
            rates=model.rates,
            max_rows=config.ingress.max_rows,
            context_tokens=model.limits.context_tokens,
            outbox=self.outbox,
            inbox=self._inbox,
            stage=begin,
            hasher=hasher,
            new_detokenizer=self.new_detokenizer,
            clock=time.monotonic,
            cpu_clock=time.thread_time,
            observed=config.telemetry.enabled,
        )
        self.observer = parts.observer
        """None: telemetry is off."""
        self._engine = parts.engine
        self._thread = EngineThread(parts.engine, self._inbox, partial(on_broken, "the engine broke"))
        self.step_cap_s = step_cap_s(config.engine, model.rates)
        """A step is planned to be no longer."""
        self.longest_step_s = config.engine.step_timeout_s or max(_STUCK_S, _STUCK_STEPS * self.step_cap_s)
        """One that takes longer hangs."""

    # --- life -----------------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Holds the interpreter for a second or two: not while anybody waits for an answer."""
        self._builder.warm_up()

    def start_staging(self) -> None:
        self._staging.start()

    def stop_staging(self) -> None:
        """Blocks until the prompt at hand is prepared."""
        self._staging.stop()

    def start_engine(self) -> None:
        self._thread.start()

    def stop_engine(self, timeout_s: float) -> bool:
        """End after the current step. Blocks; False: it still runs after `timeout_s`. Idempotent."""
        return self._thread.stop(timeout_s)

    def wait_drained(self, timeout_s: float) -> bool:
        """Block until `Drain` was read and nothing runs any more, or the engine broke. False: the time was over."""
        return self._thread.wait_drained(timeout_s)

    def wake(self) -> None:
        """There is room in the outbox again."""
        self._inbox.wake()

    # --- what others see ------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """The engine's thread runs."""
        return self._thread.alive

    @property
    def last_turn_s(self) -> float:
        """Monotonic; 0 before the start."""
        return self._thread.pulse_s

    @property
    def last_sign_s(self) -> float:
        """`last_turn_s` for as long as the engine ought to turn; then, and before, now: who has ended does not hang."""
        return self._thread.pulse_s if self._thread.alive else time.monotonic()

    def statistics(self) -> EngineStatistics:
        return self._engine.statistics()


def prepare(builder: PromptBuilder, arrival: Arrival, record: InboundRecord, sequence: int = 0) -> PreparedRequest:
    """What the staging thread does with a sequence of a request. Raises `RequestError`."""
    prepared = builder.prepare(record, arrival.headers, sequence)
    if prepared.priority is not None and arrival.body_unread:
        raise RequestError.invalid_request(
            "priority",
            "priority in a body this large comes too late to choose its class: use the tier header.",
        )
    return prepared
