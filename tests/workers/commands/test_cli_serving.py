"""What `serve`, `dev` and `demo` make of flags, environment and signals, before there is a worker."""

import argparse
import asyncio
import os
import signal
from pathlib import Path

import pytest

from workers.cli import UsageError
from workers.commands import demo, dev
from workers.commands.serving import check_this_machine, local_kafka, stop_on_signals, worker_config
from workers.configuration.config import load_config


@pytest.fixture(autouse=True)
def _no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("HEADRACE_"):
            monkeypatch.delenv(name)


@pytest.fixture
def demo_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    return parser.parse_args([])


async def test_a_closed_pipe_stops_a_worker() -> None:
    reading, writing = os.pipe()
    try:
        with stop_on_signals(reading) as stop:
            assert not stop.is_set()
            os.close(writing)
            await asyncio.wait_for(stop.wait(), 10)
    finally:
        os.close(reading)


async def test_an_open_pipe_and_no_signal_stop_nothing() -> None:
    reading, writing = os.pipe()
    try:
        with stop_on_signals(reading) as stop:
            turned = asyncio.Event()
            asyncio.get_running_loop().call_soon(turned.set)
            await turned.wait()
            assert not stop.is_set()
    finally:
        os.close(reading)
        os.close(writing)


async def test_sigterm_stops_a_worker() -> None:
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stop.wait(), 10)


def test_the_demo_serves_every_class_with_its_own_weights(
    demo_arguments: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CLASSES", "p0")
    monkeypatch.setenv("HEADRACE_SCHEDULING__TENANT_WEIGHTS", "acme=9")
    monkeypatch.setenv("HEADRACE_SCHEDULING__TRUST_TENANT_HEADER", "false")
    config = demo._config(demo_arguments, "127.0.0.1:1")
    assert config.classes == ("p0", "p1", "p2", "p3")
    assert config.scheduling.tenant_weights == {"acme": 2.0, "globex": 1.0}
    assert config.scheduling.trust_tenant_header


def test_a_broker_of_our_own_speaks_no_tls_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_KAFKA__SECURITY_PROTOCOL", "SASL_SSL")
    monkeypatch.setenv("HEADRACE_KAFKA__TOPIC_PREFIX", "mine")
    kafka = worker_config(argparse.Namespace(), kafka=local_kafka("127.0.0.1:1")).kafka
    assert (kafka.bootstrap_servers, kafka.security_protocol, kafka.topic_prefix) == (
        "127.0.0.1:1",
        "PLAINTEXT",
        "mine",
    )


def test_the_line_to_try_reaches_a_worker_of_another_prefix_and_class() -> None:
    config = load_config({"classes": "p2,p3", "kafka": {"bootstrap_servers": "h:1", "topic_prefix": "mine"}})
    line = dev._send_command(config)
    assert line == 'headrace send --bootstrap-servers h:1 --topic-prefix mine --priority p2 "Why is the sky blue?"'


def test_the_line_to_try_is_short_where_nothing_is_special() -> None:
    line = dev._send_command(load_config({"kafka": {"bootstrap_servers": "h:1"}}))
    assert line == 'headrace send --bootstrap-servers h:1 "Why is the sky blue?"'


def test_a_health_file_of_an_earlier_worker_is_not_this_ones(tmp_path: Path) -> None:
    file = tmp_path / "run" / "alive"
    file.parent.mkdir()
    file.touch()
    check_this_machine(load_config({"health": {"file": file}}))
    assert not file.exists()


def test_a_health_file_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"health\.file = "):
        check_this_machine(load_config({"health": {"file": tmp_path}}))
