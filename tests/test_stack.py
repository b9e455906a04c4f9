"""The local stack's telemetry, without a container engine: each file is asked of its own program, where that is there,
and every query of the dashboard of the catalogue of metrics."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from workers.runs.trace_mix import mix, parse_source
from workers.telemetry.dashboard import dashboard
from workers.telemetry.metric import Kind, Metric
from workers.telemetry.metric_compat import declared

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
METRICS: dict[str, Metric] = {metric.prometheus_name: metric for metric in declared(())}
QUERIES = [
    pytest.param(target["expr"], id=f"{panel['title']}-{target['refId']}")
    for panel in dashboard()["panels"]
    for target in panel.get("targets", ())
]


def read(path: str) -> Any:
    return yaml.safe_load((DEPLOY / path).read_text(encoding="utf-8"))


def tool(name: str, remedy: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not on the PATH ({remedy})")
    return found


def run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


# --- the dashboard --------------------------------------------------------------------------------------------------


def test_the_dashboard_is_what_the_module_makes() -> None:
    remedy = "run `python -m workers.telemetry.dashboard > deploy/grafana/dashboards/headrace.json`"
    file = DEPLOY / "grafana" / "dashboards" / "headrace.json"
    assert json.loads(file.read_text(encoding="utf-8")) == dashboard(), remedy


def test_panels_do_not_lie_on_each_other() -> None:
    cells = [
        (x, y)
        for panel in dashboard()["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def series(query: str) -> dict[str, Metric]:
    """Names in a query → what they are series of. Fails for one that nobody exports."""
    found: dict[str, Metric] = {}
    for name in re.findall(r"\b(?:headrace|gen_ai|messaging)_[a-z0-9_]+", query):
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        metric = METRICS.get(name) or METRICS.get(base)
        assert metric is not None, f"{name} is not in the catalogue"
        assert (metric.kind is Kind.HISTOGRAM) is (name != metric.prometheus_name), f"{name} is a {metric.kind.value}"
        found[name] = metric
    return found


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_asks_for_what_is_exported_by_labels_that_it_has(query: str) -> None:
    metrics = series(query)
    assert metrics
    asked = {label.strip() for labels in re.findall(r"\bby \(([^)]*)\)", query) for label in labels.split(",")}
    asked |= set(re.findall(r"[{,]\s*([a-z_]+)\s*=", query))
    for metric in metrics.values():
        known = set(metric.prometheus_labels) | ({"le"} if metric.kind is Kind.HISTOGRAM else set())
        assert asked <= known, f"{metric.prometheus_name} has no {asked - known}"


@pytest.mark.parametrize("query", QUERIES)
def test_rates_are_of_what_only_grows(query: str) -> None:
    for name in re.findall(r"\brate\(([a-z0-9_]+)", query):
        assert series(name)[name].kind is not Kind.GAUGE


def test_promtool_reads_every_query(tmp_path: Path) -> None:
    promtool = tool("promtool", "Debian: apt-get install prometheus")
    rules = [
        {"record": f"query_{place}", "expr": str(query.values[0]).replace("$__rate_interval", "1m")}
        for place, query in enumerate(QUERIES)
    ]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    run(promtool, "check", "rules", str(file))


# --- what Prometheus, collector and Grafana are told ----------------------------------------------------------------


def test_promtool_accepts_what_prometheus_is_told() -> None:
    run(
        tool("promtool", "Debian: apt-get install prometheus"),
        "check",
        "config",
        str(DEPLOY / "prometheus/prometheus.yml"),
    )


def test_prometheus_scrapes_the_port_that_the_worker_opens() -> None:
    jobs = {job["job_name"]: job for job in read("prometheus/prometheus.yml")["scrape_configs"]}
    (workers,) = jobs["headrace"]["dns_sd_configs"]
    environment = COMPOSE["worker"]["environment"]
    assert workers["names"] == ["worker"]
    assert workers["port"] == environment["HEADRACE_TELEMETRY__METRICS_PORT"]
    assert environment["HEADRACE_TELEMETRY__METRICS_HOST"] == "0.0.0.0"
    named = {
        target.split(":")[0]
        for name in ("collector", "jaeger")
        for target in jobs[name]["static_configs"][0]["targets"]
    }
    assert named <= COMPOSE.keys()


def test_the_collector_accepts_what_it_is_told() -> None:
    otelcol = tool("otelcol", "built of the Go module go.opentelemetry.io/collector; deploy/README.md")
    run(otelcol, "validate", f"--config={DEPLOY / 'otel-collector.yml'}")


def test_spans_go_from_the_worker_through_the_collector_to_jaeger() -> None:
    told = read("otel-collector.yml")
    port = told["receivers"]["otlp"]["protocols"]["http"]["endpoint"].rpartition(":")[2]
    assert f"http://collector:{port}" in COMPOSE["worker"]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"]
    pipeline = told["service"]["pipelines"]["traces"]
    assert pipeline["processors"][0] == "memory_limiter"
    (exporter,) = pipeline["exporters"]
    assert "jaeger:4317" in told["exporters"][exporter]["endpoint"]


def test_grafana_is_told_of_sources_that_are_there() -> None:
    sources = {source["uid"]: source for source in read("grafana/provisioning/datasources/headrace.yml")["datasources"]}
    assert {re.sub(r"https?://([^:]+):\d+", r"\1", source["url"]) for source in sources.values()} <= COMPOSE.keys()
    used = {target["datasource"]["uid"] for panel in dashboard()["panels"] for target in panel.get("targets", ())}
    assert used <= sources.keys()
    (provider,) = read("grafana/provisioning/dashboards/headrace.yml")["providers"]
    mounts = dict(reversed(mount.removesuffix(":ro").split(":")) for mount in COMPOSE["grafana"]["volumes"])
    assert mounts[provider["options"]["path"]] == "./deploy/grafana/dashboards"


@pytest.mark.parametrize("service", COMPOSE)
def test_what_is_mounted_from_here_is_here_and_read_only(service: str) -> None:
    for mount in COMPOSE[service].get("volumes", ()):
        if mount.startswith("./"):
            source, _, rest = mount.partition(":")
            assert (ROOT / source).exists()
            assert rest.endswith(":ro")


# --- the load -------------------------------------------------------------------------------------------------------


def test_the_mix_of_the_load_is_one() -> None:
    (mounted,) = COMPOSE["load"]["volumes"]
    command = COMPOSE["load"]["command"]
    file = DEPLOY / "load" / Path(command[command.index("--mix") + 1]).name
    assert mounted.startswith("./deploy/load:")
    texts = [text for line in file.read_text().splitlines() if (text := line.partition("#")[0].strip())]
    requests = mix([(source, source.synthetic()) for source in map(parse_source, texts)], 1)
    assert {request.priority.label for request in requests} == {"p0", "p1", "p2", "p3"}
    assert 200 < requests[-1].arrival_s < 400
