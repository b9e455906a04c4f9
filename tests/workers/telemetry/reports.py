"""Workers' reports as tests make them."""

from typing import Any

from topics.worker_reports import (
    ClassReport,
    EngineReport,
    KVReport,
    RequestReport,
    TenantReport,
    TimeToFirstToken,
    WorkerReport,
)


def class_report(label: str = "p0", **fields: Any) -> ClassReport:
    zero = dict.fromkeys(
        ("waiting", "running", "suspended", "kv_blocks", "dispatched_units", "borrowed_units", "preempted"), 0
    )
    known = {"oldest_s": None, "rate_units_s": None, "answered": 0, "missed": 0, "ttft": TimeToFirstToken()}
    return ClassReport(**{"label": label, **zero, **known, **fields})


def tenant_report(tenant: str, **fields: Any) -> TenantReport:
    zero = dict.fromkeys(("known", "running", "output_tokens", "answered"), 0)
    return TenantReport(**{"label": "p1", "tenant": tenant, **zero, **fields})


def request_report(request_id: str, **fields: Any) -> RequestReport:
    known = {"label": "p1", "tenant": "acme", "state": "decode", "age_s": 1.0, "slack_s": None, "preemptions": 0}
    tokens = {"prompt_tokens": 10, "output_tokens": 2, "max_output_tokens": 20}
    return RequestReport(**{"request_id": request_id, **known, **tokens, **fields})


def report(
    at_s: float, worker: str = "w1", *, steps: int = 0, step_seconds: float = 0.0, **fields: Any
) -> WorkerReport:
    engine = EngineReport(
        steps=steps, step_seconds=step_seconds, prefill_tokens=0, decode_tokens=0, capacity_units_s=100.0
    )
    known: dict[str, Any] = {
        "worker": worker,
        "at_ms": int(at_s * 1000),
        "up_s": at_s,
        "policy": "htb",
        "model": "smollm2",
        "slots": 64,
        "classes": (class_report(),),
        "tenants": (),
        "more_tenants": 0,
        "requests": (),
        "more_requests": 0,
        "engine": engine,
        "kv": KVReport(blocks=100, free=60, cached=20, swapped=0),
    }
    return WorkerReport(**(known | fields))
