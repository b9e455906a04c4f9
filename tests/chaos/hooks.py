"""Places at which a worker process of the chaos tests stops or dies, and mutations of it that a checker must notice.

Knows where in the worker's code each place is. Nothing of the product knows of this module: it wraps what a process
has imported, before its worker is built.

    staging         while a prompt is prepared
    prefill         in a step with a prompt's first chunk
    decode          in a step that only decodes
    open            in a transaction: its replies are acknowledged, its offsets not yet in it
    before-end      in a transaction: its offsets are in it, it has not ended
    delta           in mid-stream: a delta is about to be sent
    refetch         a payload that was evicted has been read again, and is not given to who waits for it yet
    deadly          in a step that a request takes part in whose prompt says so
    deadly-prompt   while such a prompt is prepared, at once: faster than a note that was not written before
"""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from topics import aiokafka_fencing, transactional_replies
from topics.replies import OutboundRecord, ReplyContext
from workers import computing
from workers.answers import egress
from workers.engine.outbox import Outbox
from workers.intake import payload_source
from workers.runners.runner import SequenceInput

__all__ = ["DEADLY", "Hook", "install", "mutate"]


DEADLY = 77
"""The second token id of a prompt that ends its worker."""


@dataclass
class Hook:
    """Counts visits to a place and acts on the n-th: every n-th, where it goes on living."""

    place: str
    visits: int
    act: signal.Signals
    say: Callable[[str, int], None]
    """The place, and how many answers had ended in the engine and were not delivered yet."""
    times: int = 1
    """How often it acts. SIGKILL acts once."""
    seen: int = 0
    ended: int = 0
    """Answers, in the engine: counted on its thread."""
    delivered: int = 0
    """Of them: counted on the event loop."""

    def visit(self) -> None:
        self.seen += 1
        if self.times and self.seen % self.visits == 0:
            self.times -= 1
            self.say(self.place, self.ended - self.delivered)
            os.kill(os.getpid(), self.act)


def install(hook: Hook, model: Any) -> Any:
    """The model to serve; for some places it is wrapped."""
    _count_undelivered(hook)
    match hook.place:
        case "staging" | "deadly-prompt":
            _visit_when_prepared(hook)
        case "prefill" | "decode" | "deadly":
            return replace(model, runner=_Runner(model.runner, hook))
        case "delta":
            send_delta = egress.Egress._send_delta

            def sending(*arguments: Any, **options: Any) -> None:
                hook.visit()
                send_delta(*arguments, **options)

            egress.Egress._send_delta = sending  # type: ignore[method-assign]
        case "refetch":
            _visit_before_payloads_come(hook)
        case "open":
            send_all = transactional_replies.TransactionalReplies._send_all

            async def sent(*arguments: Any) -> None:
                await send_all(*arguments)
                hook.visit()

            transactional_replies.TransactionalReplies._send_all = sent  # type: ignore[assignment,method-assign]
        case "before-end":
            commit = transactional_replies.commit_in_transaction  # type: ignore[attr-defined]

            async def committed(*arguments: Any) -> None:
                await commit(*arguments)
                hook.visit()

            transactional_replies.commit_in_transaction = committed  # type: ignore[assignment,attr-defined]
        case _:
            raise ValueError(f"{hook.place = }")
    return model


def _visit_when_prepared(hook: Hook) -> None:
    prepare = computing.prepare

    def prepared(*arguments: Any) -> Any:
        prompt = prepare(*arguments)
        if hook.place == "staging" or prompt.prompt_token_ids[1] == DEADLY:
            hook.visit()
        return prompt

    computing.prepare = prepared  # type: ignore[assignment]


def _visit_before_payloads_come(hook: Hook) -> None:
    came = payload_source.PayloadSource._came

    def coming(*arguments: Any, **options: Any) -> bool:
        source, record = arguments
        if (record.id.partition, record.id.offset) in source._round:
            hook.visit()
        return came(*arguments, **options)

    payload_source.PayloadSource._came = coming  # type: ignore[method-assign]


def _count_undelivered(hook: Hook) -> None:
    ended, delivered = Outbox.ended, Outbox.delivered

    def counts_ended(*arguments: Any) -> None:
        hook.ended += 1
        ended(*arguments)

    def counts_delivered(*arguments: Any) -> None:
        hook.delivered += 1
        delivered(*arguments)

    Outbox.ended, Outbox.delivered = counts_ended, counts_delivered  # type: ignore[assignment,method-assign]


class _Runner:
    def __init__(self, runner: Any, hook: Hook) -> None:
        self._runner = runner
        self._hook = hook

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def step(self, sequences: Sequence[SequenceInput]) -> list[int | None]:
        if self._hook.place == "deadly":
            if any(each.start == 0 and each.token_ids[1] == DEADLY for each in sequences):
                self._hook.visit()
            return self._runner.step(sequences)  # type: ignore[no-any-return]
        prefills = any(each.start == 0 for each in sequences)
        tokens: list[int | None] = self._runner.step(sequences)
        if prefills == (self._hook.place == "prefill"):
            self._hook.visit()
        return tokens


def mutate(mutation: str) -> None:
    """Take one of the guarantees out: a checker that does not notice is none."""
    match mutation:
        case "unstable":
            # The new owner reads past an open transaction's offsets.
            request = aiokafka_fencing._OffsetFetchRequest

            def reads_past(group: str, topics: Any, _stable: bool, tags: Any) -> Any:
                return request(group, topics, False, tags)

            aiokafka_fencing._OffsetFetchRequest = reads_past  # type: ignore[assignment,misc]
        case "no-marker":
            # One that makes nothing void: what an earlier attempt says when it wakes up counts.
            mark = ReplyContext.attempt_begins

            def marks_nothing(context: ReplyContext) -> OutboundRecord:
                return mark(replace(context, attempt=1))

            ReplyContext.attempt_begins = marks_nothing  # type: ignore[assignment,method-assign]
        case "commit-first":
            transactional_replies.TransactionalReplies._transact = _commit_first  # type: ignore[method-assign]
        case _:
            raise ValueError(f"{mutation = }")


async def _commit_first(self: Any, batch: Any) -> None:
    """Two transactions, the offsets' before the replies'."""
    producer = self._producer
    await producer.begin_transaction()
    progress, member = self._outlook(batch), self._offsets.member
    offsets = {place: await self._commit_of(producer, place, each) for place, each in progress.items()}
    await transactional_replies.commit_in_transaction(producer, offsets, member)  # type: ignore[attr-defined]
    await producer.commit_transaction()
    await producer.begin_transaction()
    await self._send_all(producer, batch)
    await producer.commit_transaction()
