"""The metrics that OpenTelemetry's semantic conventions name (≈ 1.44), for messaging and for generative AI.

Knows those names, their attributes and their buckets, with longer ones of our own behind. These names still move: they
stand here and nowhere else.
"""

from workers.telemetry.metric import Kind, Metric

__all__ = ["CONVENTIONS", "DURATION_BOUNDS", "FIRST_TOKEN_BOUNDS", "TOKEN_BOUNDS"]

_MINUTES = (300.0, 900.0, 3_600.0, 14_400.0)
"""What the conventions leave out: a batch request waits for hours."""
DURATION_BOUNDS = (*(round(0.01 * 2**power, 2) for power in range(14)), *_MINUTES)
FIRST_TOKEN_BOUNDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    *_MINUTES,
)
TOKEN_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)

_MESSAGING = ("messaging.system", "messaging.operation.name", "messaging.destination.name")
_GENERATION = ("gen_ai.provider.name", "gen_ai.operation.name", "gen_ai.request.model", "class")

CONSUMED_MESSAGES = Metric(
    "messaging.client.consumed.messages",
    "{message}",
    Kind.COUNTER,
    _MESSAGING,
    "Request records handed to this worker.",
)
SENT_MESSAGES = Metric(
    "messaging.client.sent.messages",
    "{message}",
    Kind.COUNTER,
    _MESSAGING,
    "Reply records that the broker acknowledged: deltas, and terminal replies by the topic they went to.",
)
OPERATION_DURATION = Metric(
    "messaging.client.operation.duration",
    "s",
    Kind.HISTOGRAM,
    _MESSAGING,
    "A terminal reply, from its batch's start to the broker's acknowledgement (its transaction's end).",
    DURATION_BOUNDS,
)
PROCESS_DURATION = Metric(
    "messaging.process.duration",
    "s",
    Kind.HISTOGRAM,
    _MESSAGING,
    "A request, from the moment the scheduler handed it to the engine to its reply's acknowledgement.",
    DURATION_BOUNDS,
)
REQUEST_DURATION = Metric(
    "gen_ai.server.request.duration",
    "s",
    Kind.HISTOGRAM,
    (*_GENERATION, "error.type"),
    "A request, from its arrival in the worker to its end: its last token, or what ended it. `error.type` is empty "
    "where it ended well.",
    DURATION_BOUNDS,
)
TIME_TO_FIRST_TOKEN = Metric(
    "gen_ai.server.time_to_first_token",
    "s",
    Kind.HISTOGRAM,
    _GENERATION,
    "From arrival to the first token.",
    FIRST_TOKEN_BOUNDS,
)
TIME_PER_OUTPUT_TOKEN = Metric(
    "gen_ai.server.time_per_output_token",
    "s",
    Kind.HISTOGRAM,
    _GENERATION,
    "Of a request with two tokens or more: the mean time of a token after the first.",
    (*TOKEN_BOUNDS, 5.0, 10.0, 30.0),
)

CONVENTIONS = (
    CONSUMED_MESSAGES,
    SENT_MESSAGES,
    OPERATION_DURATION,
    PROCESS_DURATION,
    REQUEST_DURATION,
    TIME_TO_FIRST_TOKEN,
    TIME_PER_OUTPUT_TOKEN,
)
