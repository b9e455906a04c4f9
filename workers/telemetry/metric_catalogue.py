"""The catalogue of metrics: every name of ours, unit, kind, label and meaning, once.

Knows what is exported, beside what OpenTelemetry names (`workers.telemetry.metric_conventions`) and what others do
(`workers.telemetry.metric_compat`). Does not know where a value comes from: `workers.telemetry.metric_store` refuses
what is not declared here, `docs/metrics.md` is made of it (`python -m workers.telemetry.metrics_page`), and a test
compares both with what a run exports.

A name is OpenTelemetry's where there is one for the thing, else `headrace.…` in its style.

**Labels are bounded.** `class` is p0 … p3 (the origin class, the topic's, unless a meaning says otherwise). `tenant` is
one of the first `telemetry.max_tenants`, those that `scheduling.tenant_weights` names before all others, or `other`.
Request ids belong into spans.
"""

from workers.telemetry.metric import Kind, Metric
from workers.telemetry.metric_conventions import DURATION_BOUNDS, FIRST_TOKEN_BOUNDS, TOKEN_BOUNDS
from workers.telemetry.metric_lookahead import LOOKAHEAD

__all__ = ["OURS"]

_COUNTER, _GAUGE, _HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

_POWERS = tuple(float(2**power) for power in range(14))

# --- who waits --------------------------------------------------------------------------------------------------------

_CLASS = ("class",)
_BY_TENANT = ("class", "tenant")
_SERVICE = "`class` is the service class: what it is served as."

QUEUE_DEPTH = Metric(
    "headrace.queue.depth", "{request}", _GAUGE, _CLASS, f"Requests that wait to be dispatched. {_SERVICE} Scale on it."
)
QUEUE_COST = Metric(
    "headrace.queue.cost", "{cost}", _GAUGE, _CLASS, f"What they are predicted to cost. {_SERVICE} Scale on it."
)
QUEUE_VARIANCE = Metric(
    "headrace.queue.depth.variance",
    "1",
    _GAUGE,
    _CLASS,
    "Variance of the queue's depth over the last minute, sampled each second. A queue that swings about the same mean "
    "hurts the tail before the mean shows anything.",
)
OLDEST_AGE = Metric(
    "headrace.queue.oldest_age", "s", _GAUGE, _CLASS, "How long the oldest request has waited that is not dispatched."
)
WAIT_TIME = Metric(
    "headrace.wait.time",
    "s",
    _HISTOGRAM,
    _BY_TENANT,
    "From arrival to dispatch (slot and blocks taken), counted when the request has ended. The rest of the time to "
    "the first token is prefill.",
    DURATION_BOUNDS,
)
FIRST_DELTA_TIME = Metric(
    "headrace.first_delta.time",
    "s",
    _HISTOGRAM,
    _CLASS,
    "Of a streamed request: from its record's time stamp (the broker's clock) until the broker has its first delta "
    "(the worker's). What its reader waits for, time in which no worker had read the record included.",
    FIRST_TOKEN_BOUNDS,
)
INTER_TOKEN_GAP = Metric(
    "headrace.inter_token.gap",
    "s",
    _HISTOGRAM,
    _CLASS,
    "Between two tokens of one request, time in which it was suspended included.",
    (0.005, *TOKEN_BOUNDS, 5.0, 10.0, 30.0, 60.0, 300.0),
)

# --- who gets what, and who lends -------------------------------------------------------------------------------------

REQUESTS = Metric(
    "headrace.requests",
    "{request}",
    _COUNTER,
    (*_BY_TENANT, "outcome"),
    "Requests that have their terminal reply. `outcome` is `completed`, the error's code, `refused` (at ingress) or "
    "`moved` (into another class, where it counts again).",
)
REJECTED = Metric(
    "headrace.rejected.requests",
    "{request}",
    _COUNTER,
    ("class", "code"),
    "Those that were never run: refused at ingress, over quota, no room, expired.",
)
TOKENS = Metric(
    "headrace.tokens",
    "{token}",
    _COUNTER,
    (*_BY_TENANT, "type"),
    "Of requests that have their terminal reply: `prompt`, `cached` (the part of the prompt that the prefix cache "
    "had) and `output`, as in their usage.",
)
GENERATED = Metric(
    "headrace.generated.tokens",
    "{token}",
    _COUNTER,
    _BY_TENANT,
    "Output tokens as they come, also of requests that have not ended.",
)
THROUGHPUT = Metric(
    "headrace.throughput", "{token}/s", _GAUGE, ("tenant",), "Output tokens a second over the last ten seconds."
)
THROUGHPUT_P99 = Metric(
    "headrace.throughput.p99",
    "{token}/s",
    _GAUGE,
    ("tenant",),
    "The throughput that 99 % of the last ten minutes' seconds in which the tenant had something running or waiting "
    "reached or passed: what it can rely on.",
)
DISPATCHED = Metric("headrace.dispatched.requests", "{request}", _COUNTER, _CLASS, f"Dispatched. {_SERVICE}")
DISPATCHED_COST = Metric(
    "headrace.dispatched.cost",
    "{cost}",
    _GAUGE,
    _CLASS,
    f"Cost of what was dispatched: predicted, and put right as it becomes known, so it may fall. {_SERVICE}",
)
BORROWED_COST = Metric(
    "headrace.borrowed.cost",
    "{cost}",
    _GAUGE,
    ("from", "to"),
    "The part of it that class `to` ran above its own rate, on the idle rate of the group `from` (`root`: of the "
    "whole machine).",
)
BORROW_RATIO = Metric(
    "headrace.borrow.ratio",
    "1",
    _GAUGE,
    ("from", "to"),
    "Borrowed ÷ dispatched cost of class `to` over the last minute.",
)
BUCKET_LEVEL = Metric(
    "headrace.bucket.level",
    "{cost}",
    _GAUGE,
    ("node", "bucket"),
    "What a bucket of the class tree holds; below 0 it is owed. `bucket` is rate, ceil, allowance, lending or strict.",
)
BUCKET_RATE = Metric("headrace.bucket.rate", "{cost}/s", _GAUGE, ("node", "bucket"), "What it is filled with.")
CAPACITY = Metric("headrace.capacity", "{cost}/s", _GAUGE, (), "What this machine does, measured in saturated steps.")

# --- who was suspended ------------------------------------------------------------------------------------------------

PREEMPTIONS = Metric(
    "headrace.preemptions",
    "{preemption}",
    _COUNTER,
    ("victim.class", "victim.tenant", "causer.class", "reason", "mode"),
    "Running requests that lost slot and blocks. Classes are service classes. `reason`: `growth` (a running request "
    "needed a block) or `admission`. `mode`: `swap` or `recompute`.",
)
SUSPENDED_TIME = Metric(
    "headrace.suspended.time",
    "s",
    _HISTOGRAM,
    _CLASS,
    "How long a request that was suspended at least once stood still in all, counted when it has ended.",
    DURATION_BOUNDS,
)
SWAP_TIME = Metric(
    "headrace.swap.time",
    "s",
    _HISTOGRAM,
    ("direction",),
    "One copy of KV blocks, out or in.",
    (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0),
)
RECOMPUTED = Metric(
    "headrace.recomputed.tokens", "{token}", _COUNTER, (), "Computed once more because of a preemption."
)
DEMOTIONS = Metric("headrace.demotions", "{request}", _COUNTER, (), "Lowered to batch instead of suspended again.")

# --- KV and slots -----------------------------------------------------------------------------------------------------

KV_BLOCKS = Metric(
    "headrace.kv.blocks",
    "{block}",
    _GAUGE,
    ("class", "state"),
    "KV blocks by state: `used` (by service class); of nobody (`class` is empty): `free` (`cached` are those of them "
    "or of the used ones that can be found by content) and `swapped` (places in use in the swap pool).",
)
KV_USAGE = Metric("headrace.kv.usage", "1", _GAUGE, (), "Part of the pool's blocks that are used.")
SLOTS = Metric(
    "headrace.slots",
    "{slot}",
    _GAUGE,
    ("class", "state"),
    "Sequence slots: `running` and `suspended` (no slot, but admitted) by service class, `free` of nobody.",
)
PREFIX_ASKED = Metric(
    "headrace.prefix.asked.tokens", "{token}", _COUNTER, _CLASS, f"Tokens for which blocks were taken. {_SERVICE}"
)
PREFIX_HIT = Metric(
    "headrace.prefix.hit.tokens", "{token}", _COUNTER, _CLASS, f"Those that the prefix cache had. {_SERVICE}"
)

# --- the engine -------------------------------------------------------------------------------------------------------

STEPS = Metric("headrace.engine.steps", "{step}", _COUNTER, (), "Forward passes.")
STEP_TIME = Metric(
    "headrace.engine.step.time",
    "s",
    _HISTOGRAM,
    (),
    "One forward pass.",
    (0.001, 0.0025, 0.005, *TOKEN_BOUNDS, 5.0, 10.0),
)
STEP_SEQUENCES = Metric(
    "headrace.engine.step.sequences", "{sequence}", _HISTOGRAM, (), "Sequences in one forward.", _POWERS[:11]
)
STEP_TOKENS = Metric(
    "headrace.engine.step.tokens",
    "{token}",
    _HISTOGRAM,
    (),
    "Tokens in one forward: prompts, decodes, guesses.",
    _POWERS,
)
COMPUTED_TOKENS = Metric(
    "headrace.engine.tokens", "{token}", _COUNTER, ("phase",), "Tokens computed, in `prefill` and in `decode`."
)
GUESSED_TOKENS = Metric(
    "headrace.engine.guessed.tokens",
    "{token}",
    _COUNTER,
    ("class", "outcome"),
    "Guessed ahead (`engine.speculate`) and computed: `accepted` when they came true, else `refused`.",
)
ENGINE_TIME = Metric(
    "headrace.engine.time",
    "s",
    _COUNTER,
    ("part",),
    "Of the engine thread: in the `forward`, in `python` around it, and `waiting` within that for a processor or the "
    "interpreter's lock.",
)
BUSY = Metric(
    "headrace.engine.busy", "1", _GAUGE, (), "Part of the last ten seconds that the engine spent in forward passes."
)
PREDICTION_ERROR = Metric(
    "headrace.prediction.error",
    "1",
    _GAUGE,
    ("what",),
    "How far off predictions are, mean absolute error ÷ mean: of `step` time, of `prompt` tokens before they are made, "
    "of `output` tokens.",
)
GPU_UTILIZATION = Metric("headrace.gpu.utilization", "1", _GAUGE, ("gpu",), "As NVML has it. On CUDA only.")
GPU_MEMORY = Metric("headrace.gpu.memory.used", "By", _GAUGE, ("gpu",), "As NVML has it. On CUDA only.")
GPU_ENERGY = Metric(
    "headrace.gpu.energy",
    "J",
    _COUNTER,
    ("gpu",),
    "Since the worker's start, as NVML has it; over generated tokens it is joules a token. On CUDA only.",
)

# --- delivery ---------------------------------------------------------------------------------------------------------

COMMIT_LAG = Metric(
    "headrace.commit.lag",
    "{record}",
    _GAUGE,
    _CLASS,
    "Records behind the committed base: unread, waiting, or running. One slow request pins the base, so do not scale "
    "on it.",
)
BEYOND_BASE = Metric(
    "headrace.commit.beyond_base",
    "{record}",
    _GAUGE,
    _CLASS,
    "Answered above a record that is not: the map in the commit carries them.",
)
COMMITS = Metric(
    "headrace.commits",
    "{commit}",
    _COUNTER,
    ("class", "outcome"),
    "Of offsets: `made`, `rejected` (the group had moved on), `failed`. Exactly once: transactions.",
)
REBALANCES = Metric("headrace.rebalances", "{rebalance}", _COUNTER, _CLASS, "Of the class's consumer group.")
ATTEMPTS = Metric(
    "headrace.attempts",
    "{request}",
    _COUNTER,
    ("class", "attempt"),
    "Requests that have their terminal reply, by the attempt that gave it: 1, 2, 3 or more (`3+`).",
)
DEAD_LETTERS = Metric("headrace.dead_letters", "{record}", _COUNTER, _CLASS, "Records sent to the dead-letter topic.")
UNDELIVERED = Metric(
    "headrace.undelivered.size",
    "By",
    _GAUGE,
    (),
    "Terminal replies that wait for the broker. At its bound nothing new runs.",
)

# --- service level objectives -----------------------------------------------------------------------------------------

SLO_REQUESTS = Metric(
    "headrace.slo.requests",
    "{request}",
    _COUNTER,
    ("class", "slo", "met"),
    "Ended requests that have this objective (`ttft`, `tpot`, `gap`, `e2e`, `deadline`), and whether they met it. "
    "What failed for its own fault does not count.",
)
SLO_ATTAINMENT = Metric(
    "headrace.slo.attainment",
    "1",
    _GAUGE,
    ("class", "slo", "window"),
    "Part of the requests that met it, over the last `5m` and `1h`. Absent while there were none.",
)

OURS = (
    QUEUE_DEPTH,
    QUEUE_COST,
    QUEUE_VARIANCE,
    OLDEST_AGE,
    WAIT_TIME,
    FIRST_DELTA_TIME,
    INTER_TOKEN_GAP,
    *LOOKAHEAD,
    REQUESTS,
    REJECTED,
    TOKENS,
    GENERATED,
    THROUGHPUT,
    THROUGHPUT_P99,
    DISPATCHED,
    DISPATCHED_COST,
    BORROWED_COST,
    BORROW_RATIO,
    BUCKET_LEVEL,
    BUCKET_RATE,
    CAPACITY,
    PREEMPTIONS,
    SUSPENDED_TIME,
    SWAP_TIME,
    RECOMPUTED,
    DEMOTIONS,
    KV_BLOCKS,
    KV_USAGE,
    SLOTS,
    PREFIX_ASKED,
    PREFIX_HIT,
    STEPS,
    STEP_TIME,
    STEP_SEQUENCES,
    STEP_TOKENS,
    COMPUTED_TOKENS,
    GUESSED_TOKENS,
    ENGINE_TIME,
    BUSY,
    PREDICTION_ERROR,
    GPU_UTILIZATION,
    GPU_MEMORY,
    GPU_ENERGY,
    COMMIT_LAG,
    BEYOND_BASE,
    COMMITS,
    REBALANCES,
    ATTEMPTS,
    DEAD_LETTERS,
    UNDELIVERED,
    SLO_REQUESTS,
    SLO_ATTAINMENT,
)
