"""A request on its way through the worker: what ingress knows, what the engine keeps, when what happened.

Knows values and their owners. Does not decide anything. `Arrival` is made by ingress and never changes;
`EngineRequest` is made when the prompt is staged and belongs to the engine thread; `Ending` leaves it for egress.
"""

from dataclasses import dataclass, field
from enum import Enum

from scheduling.priority import PriorityClass
from topics.assignment import PartitionEpoch
from topics.errors import RequestError
from topics.headers import RequestHeaders
from topics.record import RecordId
from workers.answers.detokenizer import Detokenizer
from workers.engine.ngram_lookup import NGramLookup
from workers.engine.stop_strings import StopStrings
from workers.engine.timeline import Timeline
from workers.intake.prompt import PreparedRequest
from workers.runners.runner import Embedding

__all__ = ["Arrival", "Ending", "EngineRequest", "FinishReason", "Moved"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A well-shaped record, as ingress hands it to the engine; its bytes are elsewhere (`workers.intake.payloads`).

    Times are of the worker's monotonic clock."""

    id: RecordId
    timestamp_ms: int
    """The record's, since the epoch."""
    epoch: int
    """Of the assignment under which its partition was read."""
    headers: RequestHeaders
    origin_class: PriorityClass
    """The topic's, for life: SLO, metrics, commits."""
    service_class: PriorityClass
    """What it is served as: the origin class, or a lower one that it asks for."""
    tenant: str
    flow: str
    arrived_s: float
    ttft_deadline_s: float | None
    """Orders within a flow, never expires; None: the class's SLO gives it."""
    hard_deadline_s: float | None
    """Past it the request is answered `expired` instead of run."""
    body_bytes: int
    max_tokens: int | None
    """The body's own output limit, if it names one: the prior of the length prediction. 0: it wants no output."""
    body_unread: bool = False
    """The body is too large to be parsed on the event loop: staging looks at it first."""
    prompts: int = 1
    choices: int = 1
    """For each prompt; both as far as the body was read, and not checked yet."""

    @property
    def assignment(self) -> PartitionEpoch:
        """Under which its record was read."""
        return PartitionEpoch(self.id.topic, self.id.partition, self.epoch)

    @property
    def sent_ms(self) -> int:
        """See `RequestHeaders.sent_ms`."""
        return self.headers.sent_ms(self.timestamp_ms)

    def same_record(self, other: "Arrival") -> bool:
        """Not one of a topic that was made anew, at the same place: as far as is known without their payloads."""
        return (self.id, self.timestamp_ms, self.headers, self.body_bytes) == (
            other.id,
            other.timestamp_ms,
            other.headers,
            other.body_bytes,
        )

    @property
    def sequences(self) -> int:
        """Each is a row of the engine."""
        return self.prompts * self.choices


@dataclass(slots=True)
class StopMatching:
    """The text of a request that has stop strings, matched by the engine so that it ends in the step that says them."""

    detokenizer: Detokenizer
    matcher: StopStrings


@dataclass(slots=True)
class EngineRequest:
    """A staged or running request. Owned by the engine thread; egress reads only the frozen parts."""

    row: int
    arrival: Arrival
    prepared: PreparedRequest
    timeline: Timeline
    token_ids: list[int]
    """Prompt and output so far."""
    block_names: list[int]
    """Of what the whole blocks of these tokens contain; it grows with them, and the KV accounting reads it."""
    stop: StopMatching | None
    lookup: NGramLookup = field(default_factory=NGramLookup)
    """Where its tokens stood in it before."""
    told_tokens: int = 0
    """Of the output, what an earlier attempt has told: this one began behind it."""

    @property
    def output_tokens(self) -> int:
        return len(self.token_ids) - len(self.prepared.prompt_token_ids)


class FinishReason(Enum):
    """In OpenAI's words."""

    STOP = "stop"
    """Of an embedding too: it is whole."""
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    """Said by egress, which reads the answer's text: to the engine it is STOP."""


@dataclass(frozen=True, slots=True)
class Moved:
    """It has not ended: it waits in another class from now on, as a record that is sent in the place of an answer."""

    to: PriorityClass


@dataclass(frozen=True, slots=True)
class Ending:
    """How a sequence left the engine: with a finish reason; or as its whole request does, with an error or into another
    class."""

    reason: FinishReason | RequestError | Moved
    timeline: Timeline
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    """Of the prompt: those that the prefix cache had when it was admitted."""
    cost: int = 0
    """Of its uncached prompt and its output, in cost units; what others' preemptions cost is theirs."""
    embedding: Embedding | None = field(default=None, compare=False)
    """Of a sequence that was to be embedded, and was."""

    @property
    def error(self) -> RequestError | None:
        return self.reason if isinstance(self.reason, RequestError) else None
