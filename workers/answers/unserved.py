"""Answers to requests that the engine never runs: ingress refused them, or they have ended their workers.

Knows their terminal replies and dead letters. Does not know the engine, deltas or when a reply is sent
(`workers.answers.terminal_writer`). Runs on the event loop.
"""

from collections.abc import Mapping

from scheduling.priority import PriorityClass
from topics.attempt_notes import PriorAttempts
from topics.dead_letters import DeadLetter
from topics.errors import RequestError
from topics.record import InboundRecord
from topics.replies import OutboundRecord
from workers.answers.reply_body import error_body
from workers.answers.reply_contexts import ReplyContexts
from workers.answers.terminal_writer import ReplyTopics, Terminal, TerminalWriter, ended_in_bulk
from workers.attempts.attempts import Attempts
from workers.intake.ingress import Refusal
from workers.intake.request import Arrival

__all__ = ["Unserved"]


class Unserved:
    def __init__(
        self,
        *,
        topics: ReplyTopics,
        writers: Mapping[PriorityClass, TerminalWriter],
        groups: Mapping[PriorityClass, str],
        contexts: ReplyContexts,
        attempts: Attempts,
    ) -> None:
        """`groups`: the consumer group of each class, for the dead letters' headers."""
        self._topics = topics
        self._writers = writers
        self._groups = groups
        self._contexts = contexts
        self._attempts = attempts

    def refuse(self, refusal: Refusal) -> None:
        """Answer a record that ingress refused; one that nobody could recognise goes to the dead letters."""
        record, error = refusal.record, refusal.error
        reply: OutboundRecord
        if refusal.answerable:
            reply = self._contexts.of_refused(refusal.address).error(error_body(error))
        else:
            letter = DeadLetter.of(
                record, group=self._groups[refusal.origin_class], delivery_count=1, message=error.message
            )
            reply = letter.encode(self._topics.dead_letters)
        last = self._attempts.refused(record.id)
        self._writers[refusal.origin_class].put(
            Terminal(
                *(reply, record.id, refusal.epoch, refusal.origin_class, last.written),
                beside=last.beside,
                in_bulk=ended_in_bulk(error),
                held_bytes=refusal.held_bytes,
            )
        )

    def give_up(self, arrival: Arrival, record: InboundRecord | None, prior: PriorAttempts) -> None:
        """Answer a request that ends its workers, and keep it among the dead letters; what is known of it where its
        record is gone."""
        error = RequestError.crashed(prior.crashes)
        reply = self._contexts.of(arrival).error(error_body(error))
        if record is None:
            known = tuple(arrival.headers.encode())
            record = InboundRecord(arrival.id, arrival.timestamp_ms, key=None, value=None, headers=known)
        letter = DeadLetter.of(
            record,
            group=self._groups[arrival.origin_class],
            delivery_count=prior.note.attempt,
            message=error.message,
        )
        last = self._attempts.ending(arrival)
        beside = (letter.encode(self._topics.dead_letters), *last.beside)
        self._writers[arrival.origin_class].put(
            Terminal(reply, arrival.id, arrival.epoch, arrival.origin_class, last.written, beside=beside)
        )
