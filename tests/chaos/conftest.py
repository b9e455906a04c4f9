"""Fixtures of the chaos tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.cluster import three_nodes
from tests.chaos.crew import BROKER_PROPERTIES
from topics.local_broker import LocalBroker


@pytest.fixture(scope="session")
def chaos_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A broker with short sessions, so that a killed worker's partitions are free soon."""
    folder = tmp_path_factory.mktemp("chaos-kafka")
    with LocalBroker(folder, start_timeout_s=120.0, extra_properties=BROKER_PROPERTIES) as broker:
        yield broker


@pytest.fixture
def chaos_nodes(tmp_path: Path) -> Iterator[tuple[LocalBroker, ...]]:
    """The same as three nodes that may be bounced one at a time: a cluster a test."""
    with three_nodes(tmp_path, BROKER_PROPERTIES) as nodes:
        yield nodes


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The full-size cases take an hour: they run when they are asked for."""
    if "long" in config.getoption("markexpr"):
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="takes long: `make chaos`"))
