"""From the engine thread to egress: one coalescing publication per request, bounded by what is not yet delivered.

Knows pending tokens, endings and their bytes. Does not know Kafka or text. The engine never waits here: when too
much is undelivered, `full` says so and the engine dispatches nothing new.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from topics.record import RecordId
from workers.intake.prompt import PreparedRequest
from workers.intake.request import Arrival, Ending, Moved
from workers.intake.sampling import TokenLogprobs

__all__ = ["Outbox", "Publication"]

_BYTES_PER_TOKEN = 8
"""Of a terminal reply, roughly: only a bound on memory hangs on it."""
_BYTES_PER_LOGPROB = 100
_BYTES_PER_REPLY = 1_024


@dataclass(slots=True)
class Publication:
    """What is new of one sequence of a request since egress last looked."""

    arrival: Arrival
    prepared: PreparedRequest | None
    """None: it failed before it was staged."""
    token_ids: list[int] = field(default_factory=list)
    text: str | None = None
    """The text of these tokens where the engine made it (stop strings); None: egress detokenises."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of each of the tokens, where the request asks for them; else none."""
    ending: Ending | None = None
    bytes: int = 0

    @property
    def has_vector(self) -> bool:
        """It ends with an embedding, which takes as long to be written as many words."""
        return self.ending is not None and self.ending.embedding is not None


class Outbox:
    """One writer (the engine thread), one reader (the event loop)."""

    def __init__(self, max_pending_bytes: int, notify: Callable[[], None]) -> None:
        """`notify` is called from the engine thread when there is something to take; it must not block."""
        self._max_pending_bytes = max_pending_bytes
        self._notify = notify
        self._lock = threading.Lock()
        self._pending: dict[tuple[RecordId, int], dict[int, Publication]] = {}
        """Of each request, by sequence. A partition may be revoked and come back before egress looks: its two
        assignments are two streams, so a request is a record under one of them."""
        self._undelivered_bytes = 0

    @property
    def full(self) -> bool:
        return self._undelivered_bytes >= self._max_pending_bytes

    @property
    def undelivered_bytes(self) -> int:
        """Of terminal replies, roughly."""
        return self._undelivered_bytes

    def tokens(
        self,
        arrival: Arrival,
        prepared: PreparedRequest,
        token_ids: list[int],
        text: str | None,
        logprobs: TokenLogprobs | None = None,
    ) -> None:
        with self._lock:
            publication = self._publication(arrival, prepared)
            publication.token_ids.extend(token_ids)
            if logprobs is not None:
                publication.logprobs.append(logprobs)
            if text is not None:
                publication.text = (publication.text or "") + text

    def ended(self, arrival: Arrival, prepared: PreparedRequest | None, ending: Ending) -> None:
        with self._lock:
            if ending.error is not None:
                self._drop_others(arrival, prepared)
            publication = self._publication(arrival, prepared)
            assert publication.ending is None, f"{arrival.id} ended twice"
            publication.ending = ending
            publication.bytes = _BYTES_PER_REPLY + _bytes_a_token(prepared) * ending.output_tokens
            if prepared is not None and prepared.embedding is not None:
                publication.bytes += prepared.embedding.reply_bytes
            if isinstance(ending.reason, Moved):
                publication.bytes += arrival.body_bytes  # it is sent itself
            self._undelivered_bytes += publication.bytes

    def flush(self) -> None:
        """Tell egress, once a step."""
        if self._pending:
            self._notify()

    def take_all(self) -> list[Publication]:
        with self._lock:
            taken, self._pending = self._pending, {}
        return [publication for publications in taken.values() for publication in publications.values()]

    def delivered(self, publication: Publication) -> None:
        """The terminal reply of this publication is on the broker: its bytes no longer count."""
        self.release(publication.bytes)

    def release(self, size: int) -> None:
        """So many bytes of endings will never be delivered, or are."""
        with self._lock:
            self._undelivered_bytes -= size
            assert self._undelivered_bytes >= 0

    def _drop_others(self, arrival: Arrival, prepared: PreparedRequest | None) -> None:
        """An error is the whole request's: nobody needs what its other sequences said.

        One that was not staged yet says nothing of its number, so what has ended is another's in any case.
        """
        publications, own = self._pending.get((arrival.id, arrival.epoch), {}), _sequence(prepared)
        for sequence in list(publications):
            if sequence != own or publications[sequence].ending is not None:
                self._undelivered_bytes -= publications.pop(sequence).bytes

    def _publication(self, arrival: Arrival, prepared: PreparedRequest | None) -> Publication:
        publications = self._pending.setdefault((arrival.id, arrival.epoch), {})
        publication = publications.get(_sequence(prepared))
        if publication is None:
            publication = publications[_sequence(prepared)] = Publication(arrival, prepared)
        return publication


def _sequence(prepared: PreparedRequest | None) -> int:
    return 0 if prepared is None else prepared.sequence


def _bytes_a_token(prepared: PreparedRequest | None) -> int:
    logprobs = None if prepared is None else prepared.sampling.logprobs
    return _BYTES_PER_TOKEN + (0 if logprobs is None else _BYTES_PER_LOGPROB * (1 + logprobs))
