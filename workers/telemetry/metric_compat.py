"""Metrics under other people's names, for dashboards that know those: exported where `telemetry.compat` asks for them.

Knows vLLM's names, and those of published write-ups about LLM schedulers. What they mean here is said by the metric of
ours that each is a copy of. A `_total` that a counter's name ends with is left to Prometheus.
"""

from workers.telemetry.metric import Kind, Metric
from workers.telemetry.metric_catalogue import INTER_TOKEN_GAP, OURS, SWAP_TIME
from workers.telemetry.metric_conventions import CONVENTIONS

__all__ = ["COMPAT", "declared"]

_COUNTER, _GAUGE, _HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

# --- vLLM -------------------------------------------------------------------------------------------------------------

_MODEL = ("model_name",)

VLLM_RUNNING = Metric("vllm:num_requests_running", "", _GAUGE, _MODEL, "Requests that hold a slot.")
VLLM_WAITING = Metric("vllm:num_requests_waiting", "", _GAUGE, _MODEL, "Requests not dispatched yet, or suspended.")
VLLM_KV_USAGE = Metric("vllm:kv_cache_usage_perc", "", _GAUGE, _MODEL, "headrace.kv.usage.")
VLLM_PREEMPTIONS = Metric("vllm:num_preemptions", "", _COUNTER, _MODEL, "headrace.preemptions, all of them.")
VLLM_DRAFTS = Metric(
    "vllm:spec_decode_num_draft_tokens", "", _COUNTER, _MODEL, "headrace.engine.guessed.tokens, all of them."
)
VLLM_ACCEPTED = Metric(
    "vllm:spec_decode_num_accepted_tokens", "", _COUNTER, _MODEL, "headrace.engine.guessed.tokens that came true."
)
VLLM_TTFT = Metric(
    "vllm:time_to_first_token_seconds",
    "",
    _HISTOGRAM,
    _MODEL,
    "gen_ai.server.time_to_first_token.",
    (
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
        160.0,
    ),
)
VLLM_GAP = Metric(
    "vllm:inter_token_latency_seconds",
    "",
    _HISTOGRAM,
    _MODEL,
    "headrace.inter_token.gap, over all classes.",
    INTER_TOKEN_GAP.bounds,
)
VLLM_E2E = Metric(
    "vllm:e2e_request_latency_seconds",
    "",
    _HISTOGRAM,
    _MODEL,
    "gen_ai.server.request.duration of those that ended well.",
    (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
)

# --- the names of published write-ups ---------------------------------------------------------------------------------

_WAITS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TENANT_CLASS = ("tenant", "slo_class")

LLM_QUEUE_DEPTH = Metric("llm_scheduler_queue_depth", "", _GAUGE, ("priority",), "headrace.queue.depth.")
LLM_WAIT = Metric(
    "llm_scheduler_wait_seconds", "", _HISTOGRAM, ("priority",), "From arrival to the first token.", _WAITS
)
LLM_HIT_RATE = Metric("llm_kv_cache_hit_rate", "", _GAUGE, ("priority",), "headrace.prefix.hit.tokens ÷ .asked.tokens.")
LLM_PREEMPTIONS = Metric("llm_preemption", "", _COUNTER, ("victim_priority", "reason"), "headrace.preemptions.")
LLM_ATTAINMENT = Metric(
    "llm_sla_attainment", "", _GAUGE, ("priority", "tier"), "headrace.slo.attainment over 1h; `tier` is the objective."
)
LLM_SWAP = Metric(
    "llm_kv_swap_seconds",
    "",
    _HISTOGRAM,
    ("direction",),
    "headrace.swap.time.",
    SWAP_TIME.bounds,
)
SCHEDULER_WAIT = Metric("scheduler_wait_time", "", _HISTOGRAM, _TENANT_CLASS, "headrace.wait.time, in seconds.", _WAITS)
SCHEDULER_PREEMPTIONS = Metric(
    "scheduler_preempt_count", "", _GAUGE, _TENANT_CLASS, "headrace.preemptions, of the victim, without `_total`."
)
SCHEDULER_BORROW = Metric("scheduler_borrow_ratio", "", _GAUGE, ("tier_from", "tier_to"), "headrace.borrow.ratio.")
SCHEDULER_THROUGHPUT = Metric("scheduler_throughput_p99", "", _GAUGE, ("tenant",), "headrace.throughput.p99.")

COMPAT = {
    "vllm": (
        VLLM_RUNNING,
        VLLM_WAITING,
        VLLM_KV_USAGE,
        VLLM_PREEMPTIONS,
        VLLM_DRAFTS,
        VLLM_ACCEPTED,
        VLLM_TTFT,
        VLLM_GAP,
        VLLM_E2E,
    ),
    "llm-scheduler": (
        LLM_QUEUE_DEPTH,
        LLM_WAIT,
        LLM_HIT_RATE,
        LLM_PREEMPTIONS,
        LLM_ATTAINMENT,
        LLM_SWAP,
        SCHEDULER_WAIT,
        SCHEDULER_PREEMPTIONS,
        SCHEDULER_BORROW,
        SCHEDULER_THROUGHPUT,
    ),
}
"""By the value of `telemetry.compat`."""


def declared(compat: tuple[str, ...]) -> tuple[Metric, ...]:
    """What a worker with this setting exports."""
    return (*CONVENTIONS, *OURS, *(metric for name in compat for metric in COMPAT[name]))
