"""The container files: what `docker compose up` promises, read from the files themselves.

Where compose's own code is at hand (`docker compose version` works; no engine is needed) it checks the files too.
"""

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from topics.kafka_distribution import KAFKA_VERSION
from workers.cli import COMMANDS
from workers.configuration.config import WorkerConfig, load_config

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OWN_IMAGE = f"headrace:{PYPROJECT['project']['version']}"
PINNED = re.compile(r"[a-z0-9._/-]+:(v?\d+(\.\d+)+[\w.-]*)(@sha256:[0-9a-f]{64})?")

Service = dict[str, Any]
WITHOUT_SHELL = frozenset({"collector"})
"""Images that hold one program and nothing else."""


def load(name: str) -> dict[str, Any]:
    return cast(dict[str, Any], yaml.safe_load((ROOT / name).read_text(encoding="utf-8")))


COMPOSE = load("docker-compose.yml")
GPU = load("docker-compose.gpu.yml")
SERVICES: dict[str, Service] = COMPOSE["services"]


def seconds(duration: str) -> int:
    match = re.fullmatch(r"(\d+)(s|m)", duration)
    assert match, duration
    return int(match.group(1)) * {"s": 1, "m": 60}[match.group(2)]


def environment(service: Service) -> dict[str, str]:
    """The variables a service gets when the caller's shell sets none: `${NAME:-default}` is the default."""
    given: dict[str, Any] = service.get("environment", {})
    return {
        name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(value)) for name, value in given.items() if value is not None
    }


def is_one_shot(service: Service) -> bool:
    return bool(service["restart"] == "no")


def image_variables() -> dict[str, str]:
    return dict(re.findall(r"\b(HEADRACE_\w+)=(\S+)", DOCKERFILE))


def headrace_services() -> Iterator[Service]:
    return (service for service in SERVICES.values() if service["image"] == OWN_IMAGE)


@pytest.fixture
def effective_config(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> WorkerConfig:
    """What the worker reads in its container: the image's variables, compose's, and the override's if asked for."""
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    variables = image_variables() | environment(SERVICES["worker"])
    if getattr(request, "param", None) == "gpu":
        variables |= environment(GPU["services"]["worker"])
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return load_config()


# --- health and order -------------------------------------------------------


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_states_its_health_or_ends_by_itself(name: str) -> None:
    service = SERVICES[name]
    if name in WITHOUT_SHELL:
        # Nothing in the image can ask it: Prometheus does, and an alert says that it is down.
        scraped = (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
        assert "healthcheck" not in service
        assert f'"{name}:' in scraped
    elif is_one_shot(service):
        assert service["healthcheck"] == {"disable": True}  # else it inherits the image's and is never well
    else:
        assert service["healthcheck"]["test"][0] == "CMD-SHELL"
        assert seconds(service["healthcheck"]["timeout"]) <= seconds(service["healthcheck"]["interval"])
        assert service["restart"] == "unless-stopped"


def test_kafka_then_topics_then_worker() -> None:
    assert "depends_on" not in SERVICES["kafka"]
    assert SERVICES["topics"]["depends_on"] == {"kafka": {"condition": "service_healthy"}}
    assert SERVICES["worker"]["depends_on"] == {
        "kafka": {"condition": "service_healthy"},
        "topics": {"condition": "service_completed_successfully"},
    }
    assert is_one_shot(SERVICES["topics"])


@pytest.mark.parametrize(("age_s", "healthy"), [(0, True), (30, True), (90, False), (None, False)])
def test_the_health_check_tells_a_fresh_file_from_a_stale_one(tmp_path: Path, age_s: int | None, healthy: bool) -> None:
    path = environment(SERVICES["worker"])["HEADRACE_HEALTH__FILE"]
    file = tmp_path / "health"
    if age_s is not None:
        file.touch()
        modified = file.stat().st_mtime - age_s
        os.utime(file, (modified, modified))
    in_compose = SERVICES["worker"]["healthcheck"]["test"][1]
    in_image = re.search(r'CMD \["sh", "-c", "(find [^"]+)"\]', DOCKERFILE)
    assert in_image
    assert in_image.group(1) == in_compose
    command = ["sh", "-c", in_compose.replace(path, str(file))]
    assert (subprocess.run(command, capture_output=True, check=False).returncode == 0) is healthy


def test_the_image_and_compose_name_the_same_health_file() -> None:
    assert image_variables()["HEADRACE_HEALTH__FILE"] == environment(SERVICES["worker"])["HEADRACE_HEALTH__FILE"]


def test_docker_waits_longer_than_the_worker_drains(effective_config: WorkerConfig) -> None:
    goodbyes_s = 10
    grace_s = seconds(SERVICES["worker"]["stop_grace_period"])
    assert grace_s >= effective_config.egress.drain_grace_s + goodbyes_s


# --- configuration ----------------------------------------------------------


@pytest.mark.parametrize(
    ("effective_config", "device"), [("cpu", "cpu"), ("gpu", "cuda")], indirect=["effective_config"]
)
def test_every_variable_is_a_setting_and_its_value_is_valid(effective_config: WorkerConfig, device: str) -> None:
    # An unknown variable or a bad value raises in load_config.
    assert effective_config.engine.device == device
    assert effective_config.health.file is not None


def test_workers_meet_kafka_on_a_listener_that_is_advertised_inside() -> None:
    advertised = dict(
        listener.split("://") for listener in environment(SERVICES["kafka"])["KAFKA_ADVERTISED_LISTENERS"].split(",")
    )
    for service in headrace_services():
        assert environment(service)["HEADRACE_KAFKA__BOOTSTRAP_SERVERS"] == advertised["NETWORK"]
    assert advertised["NETWORK"] in SERVICES["kafka"]["healthcheck"]["test"][1]
    assert SERVICES["kafka"]["hostname"] == advertised["NETWORK"].split(":")[0]


def test_the_host_reaches_kafka_where_a_worker_on_the_host_looks_by_default() -> None:
    port = WorkerConfig.model_fields["kafka"].default.bootstrap_servers.split(":")[1]
    assert SERVICES["kafka"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert f"HOST://localhost:{port}" in environment(SERVICES["kafka"])["KAFKA_ADVERTISED_LISTENERS"]


def test_commands_are_commands_of_the_command_line() -> None:
    assert [service["command"][0] for service in headrace_services()] == ["topics", "serve", "load"]
    assert {"topics", "serve", "load"} <= COMMANDS.keys()


def test_the_gpu_override_changes_the_worker_and_nothing_else() -> None:
    assert list(GPU["services"]) == ["worker"]
    assert set(GPU["services"]["worker"]) == {"environment", "deploy"}
    (device,) = GPU["services"]["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia"
    assert "gpu" in device["capabilities"]


# --- images, volumes, exposure ----------------------------------------------


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_pinned(name: str) -> None:
    assert PINNED.fullmatch(SERVICES[name]["image"])


def test_compose_runs_the_kafka_that_the_tests_run() -> None:
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{KAFKA_VERSION}"


def test_the_own_image_is_built_from_this_checkout() -> None:
    services = list(headrace_services())
    assert len(services) == 3
    for service in services:
        assert service["build"] == "."
        assert service["pull_policy"] == "build"


def test_volumes_are_declared_and_used() -> None:
    every = [mount for service in SERVICES.values() for mount in service.get("volumes", ())]
    mounts = [mount.split(":") for mount in every if not mount.startswith("./")]
    assert sorted(name for name, _ in mounts) == sorted(COMPOSE["volumes"])
    assert ["kafka-data", environment(SERVICES["kafka"])["KAFKA_LOG_DIRS"]] in mounts
    assert ["model-cache", image_variables()["HEADRACE_CACHE_DIR"]] in mounts


@pytest.mark.parametrize("services", [SERVICES, GPU["services"]], ids=["compose", "gpu"])
def test_no_secret_has_a_value(services: dict[str, Service]) -> None:
    secret = re.compile(r"TOKEN|PASSWORD|SECRET|CREDENTIAL|(^|_)KEY($|_)")
    given = {name: value for service in services.values() for name, value in service.get("environment", {}).items()}
    assert given
    assert {name: value for name, value in given.items() if secret.search(name) and value is not None} == {}


# --- Dockerfile -------------------------------------------------------------


def test_base_images_are_pinned() -> None:
    sources = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", DOCKERFILE, re.MULTILINE))
    bases = [source for source in sources if source not in stages]
    assert bases
    assert all(PINNED.fullmatch(base) for base in bases)


def test_the_container_runs_headrace_without_root() -> None:
    assert re.findall(r"^USER (\S+)", DOCKERFILE, re.MULTILINE)[-1] == "headrace"
    # The exec form: a shell in between would keep SIGTERM from the worker.
    assert 'ENTRYPOINT ["headrace"]' in DOCKERFILE


def test_the_image_gets_every_package_and_the_context_lets_it_through() -> None:
    copied = {
        source
        for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
        for source in sources.split()
    }
    let_through = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE))
    assert copied == let_through
    assert set(PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) <= copied
    assert all((ROOT / source).exists() for source in copied)


# --- compose's own opinion --------------------------------------------------


@pytest.fixture(scope="module")
def docker_compose() -> list[str]:
    command = ["docker", "compose"]
    try:
        answer = subprocess.run([*command, "version"], capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        pytest.skip("docker is not on the PATH")
    if answer.returncode != 0:
        pytest.skip("docker has no compose plugin")
    return command


@pytest.mark.parametrize("files", [("docker-compose.yml",), ("docker-compose.yml", "docker-compose.gpu.yml")])
def test_compose_accepts_the_files(docker_compose: list[str], files: tuple[str, ...]) -> None:
    chosen = [word for file in files for word in ("-f", file)]
    answer = subprocess.run(
        [*docker_compose, *chosen, "config", "-q"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
