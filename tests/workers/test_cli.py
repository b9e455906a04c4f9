"""The command line: exit codes and sentences, never a traceback; and what works without the worker extra."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from topics.extras import how_to_install
from workers.cli import COMMANDS, main

WORKER_EXTRA = (
    "gguf",
    "jinja2",
    "numpy",
    "opentelemetry.exporter",
    "opentelemetry.sdk",
    "opentelemetry.semconv",
    "psutil",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
)
"""What `pip install .` does not bring."""
WITHOUT_EXTRA = f"""
import contextlib, io, json, sys
for name in {WORKER_EXTRA!r}:
    sys.modules[name] = None
from workers.cli import main
answers = []
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as end:
            code = end.code
    answers.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(answers))
"""


@pytest.fixture(autouse=True)
def _no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("HEADRACE_", "OTEL_")):
            monkeypatch.delenv(name)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that is taken and on which nobody listens: connections are refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def base_install(*commands: list[str]) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each command, run one after another in a process without the extra."""
    answer = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRA, json.dumps(commands)],
        stdout=subprocess.PIPE,
        timeout=120,
        check=True,
    )
    return [(code, out, err) for code, out, err in json.loads(answer.stdout)]


# --- without the worker extra -------------------------------------------------


def test_help_needs_no_worker_extra() -> None:
    commands = ["send", "topics", "config", "serve", "dev", "demo", "bench"]
    answers = base_install(*([command, "--help"] for command in commands))
    for command, (code, out, err) in zip(commands, answers, strict=True):
        assert (code, err) == (0, "")
        assert f"usage: headrace {command}" in out


def test_the_client_needs_no_worker_extra(closed_port: int) -> None:
    broker = ["--bootstrap-servers", f"127.0.0.1:{closed_port}"]
    config, listing, *talking = base_install(
        ["config"],
        ["topics", "list"],
        ["send", "Hello", *broker],
        ["topics", "check", *broker],
        ["topics", "create", *broker],
    )
    assert (config[0], listing[0]) == (0, 0)
    for code, _, err in talking:
        assert code == 1
        assert err.startswith(f"headrace: no Kafka broker answered at 127.0.0.1:{closed_port}")


def test_a_worker_says_that_it_needs_the_extra() -> None:
    commands = [["serve"], ["serve", "--devices=cpu"], ["dev"], ["demo"], ["bench", "delivery"], ["bench", "engine"]]
    for code, _, err in base_install(*commands, ["simulate", "--help"]):
        assert code == 2
        assert err.count("\n") == 1
        assert err.endswith(f"{how_to_install('worker')}\n")


def test_a_producer_without_the_sdk_warns_that_its_span_is_lost(
    closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    ((code, _, err),) = base_install(["send", "Hello", "--bootstrap-servers", f"127.0.0.1:{closed_port}"])
    assert code == 1
    assert "the producer's span is not exported" in err


# --- what the user got wrong ----------------------------------------------------


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of a command that the user must mend."""
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("headrace: ")
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize("command", ["serve", "dev", "demo"])
def test_an_unknown_policy_is_refused_before_anything_starts(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "scheduling.policy = 'nonsense'" in refusal([command, "--policy", "nonsense"], capsys)


def test_an_unknown_log_level_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["config", "--log-level", "nonsense"])
    assert end.value.code == 2
    assert "argument --log-level: invalid choice: 'nonsense'" in capsys.readouterr().err


def test_log_levels_may_be_in_capitals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--log-level", "WARNING"]) == 0
    assert "policy: htb" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"- engine\n", b"model: {source: M\xfcller}\n", b"engine: {"])
def test_a_file_that_is_no_configuration_is_refused(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "headrace.yaml"
    file.write_bytes(content)
    monkeypatch.setenv("HEADRACE_CONFIG", "")  # --config sets it: restored after the test
    assert "headrace.yaml" in refusal(["config", "--config", str(file)], capsys)


@pytest.mark.parametrize("command", [["serve"], ["send", "Hello"], ["topics", "check"]])
def test_a_tls_file_that_is_not_there_is_refused(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_KAFKA__SECURITY_PROTOCOL", "SSL")
    monkeypatch.setenv("HEADRACE_KAFKA__SSL_CAFILE", "/no/such/ca.pem")
    assert "/no/such/ca.pem" in refusal(command, capsys)


@pytest.mark.parametrize("command", [["serve"], ["serve", "--devices", "cpu"]])
def test_a_health_file_that_cannot_be_written_is_refused(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    said = refusal([*command, "--health-file", str(tmp_path / "file" / "alive")], capsys)
    assert "health.file = " in said


def test_every_command_is_in_the_overview(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert [name for name in COMMANDS if f"\n  {name} " not in shown] == []
