"""Alive, ready and the file: what a supervisor is told."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.workers.http_client import ask
from workers.health import Health
from workers.http_endpoint import HttpEndpoint


@dataclass
class Patient:
    turned_s: float = 0.0
    accepting: bool = True
    trouble: str | None = None

    def __post_init__(self) -> None:
        self.turned_s = time.monotonic()

    def health(self, longest_turn_s: float = 100.0) -> Health:
        return Health(
            last_turn_s=lambda: self.turned_s,
            longest_turn_s=longest_turn_s,
            accepting=lambda: self.accepting,
            unhealthy=lambda: self.trouble,
        )


def test_a_worker_that_turns_and_accepts_is_alive_and_ready() -> None:
    health = Patient().health()
    assert (health.stuck(), health.problem(), health.not_ready()) == (None, None, None)


def test_a_stuck_engine_is_neither() -> None:
    patient = Patient()
    patient.turned_s -= 200
    health = patient.health()
    assert health.stuck() is not None
    assert health.not_ready() == health.stuck()


def test_a_broker_that_is_away_makes_it_unready_and_leaves_it_alive() -> None:
    health = Patient(trouble="the consumer was replaced").health()
    assert health.stuck() is None
    assert health.problem() == health.not_ready() == "the consumer was replaced"


def test_starting_and_draining_are_no_trouble_and_not_ready() -> None:
    health = Patient(accepting=False).health()
    assert health.problem() is None
    assert health.not_ready() is not None


@pytest.mark.parametrize(
    ("patient", "path", "status"),
    [
        (Patient, "/livez", 200),
        (Patient, "/readyz", 200),
        (lambda: Patient(accepting=False), "/livez", 200),
        (lambda: Patient(accepting=False), "/readyz", 503),
    ],
)
async def test_over_http(patient: Callable[[], Patient], path: str, status: int) -> None:
    endpoint = HttpEndpoint("127.0.0.1", 0)
    patient().health().mount(endpoint)
    async with endpoint.serving():
        assert (await ask(endpoint.port, f"GET {path} HTTP/1.1")).startswith(f"HTTP/1.1 {status} ")
