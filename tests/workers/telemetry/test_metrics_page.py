"""The catalogue and its page."""

import re
from pathlib import Path

from workers.telemetry.metric_catalogue import OURS
from workers.telemetry.metric_compat import COMPAT
from workers.telemetry.metric_conventions import CONVENTIONS
from workers.telemetry.metric_lookahead import LOOKAHEAD
from workers.telemetry.metrics_page import metrics_page

EVERYTHING = (*CONVENTIONS, *OURS, *(metric for metrics in COMPAT.values() for metric in metrics))


def test_the_page_is_made_of_the_catalogue() -> None:
    page = Path(__file__).parents[3] / "docs" / "metrics.md"
    assert page.read_text(encoding="utf-8") == metrics_page(), (
        "run: .venv/bin/python -m workers.telemetry.metrics_page > docs/metrics.md"
    )


def test_every_declaration_of_the_catalogue_is_listed() -> None:
    own = [metric for metric in OURS if metric not in LOOKAHEAD]
    for name, listed in (
        ("metric_catalogue", own),
        ("metric_lookahead", LOOKAHEAD),
        ("metric_conventions", CONVENTIONS),
    ):
        source = (Path(__file__).parents[3] / "workers" / "telemetry" / f"{name}.py").read_text(encoding="utf-8")
        assert len(re.findall(r"^[A-Z_0-9]+ = Metric\(", source, re.MULTILINE)) == len(listed)


def test_no_name_is_used_twice() -> None:
    names = [metric.prometheus_name for metric in EVERYTHING]
    assert len(names) == len(set(names))


def test_the_published_names_are_to_the_letter() -> None:
    assert {metric.prometheus_name: metric.prometheus_labels for metric in COMPAT["llm-scheduler"]} == {
        "llm_scheduler_queue_depth": ("priority",),
        "llm_scheduler_wait_seconds": ("priority",),
        "llm_kv_cache_hit_rate": ("priority",),
        "llm_preemption_total": ("victim_priority", "reason"),
        "llm_sla_attainment": ("priority", "tier"),
        "llm_kv_swap_seconds": ("direction",),
        "scheduler_wait_time": ("tenant", "slo_class"),
        "scheduler_preempt_count": ("tenant", "slo_class"),
        "scheduler_borrow_ratio": ("tier_from", "tier_to"),
        "scheduler_throughput_p99": ("tenant",),
    }
    assert [metric.prometheus_name.removeprefix("vllm:") for metric in COMPAT["vllm"]] == [
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "num_preemptions_total",
        "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total",
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "e2e_request_latency_seconds",
    ]
