"""`headrace load` against a worker with the real model: all is answered with the trace's lengths, under each policy."""

import asyncio
import os
from pathlib import Path

import orjson
import pytest

from tests.integration.worker.conftest import RunWorker
from topics.kafka_settings import KafkaSettings
from topics.partition_reader import PartitionReader
from workers.cli import main
from workers.configuration.config import WorkerConfig

pytestmark = [pytest.mark.broker, pytest.mark.model]


async def test_a_stream_is_played_and_its_results_are_those_of_simulate(
    worker_config: WorkerConfig, run_worker: RunWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = worker_config.kafka
    arguments = [
        *("load", "synthetic@class=p0,requests=3,prompt=40,output=8,rate=20"),
        *("synthetic@class=p3,tenants=2,requests=5,prompt=16,output=12", "--length-scale", "0.5"),
        *("--label", "htb", "--timeout-s", "200"),
        *("--bootstrap-servers", kafka.bootstrap_servers, "--topic-prefix", kafka.topic_prefix),
        *("--out", str(tmp_path), "--json"),
    ]
    async with run_worker(worker_config):
        assert await asyncio.to_thread(main, arguments) == 0
    results = orjson.loads((tmp_path / "results.json").read_bytes())
    (run,) = results["runs"]
    assert (run["policy"], run["completed"], run["failed"]) == ("htb", 8, 0)
    assert run["total_input_tokens"] == 3 * 20 + 5 * 8
    assert run["total_output_tokens"] == 3 * 4 + 5 * 6
    for label in ("p0", "p3"):
        group = run["by_class"][label]
        split = group["mean_ttft_split_ms"]
        assert split["prefill"] > 0
        assert sum(split.values()) == pytest.approx(group["mean_ttft_ms"], rel=0.05)
    files = {"results.json", "requests-htb.csv", "htb.png", "report.html"}
    assert set(os.listdir(tmp_path)) == files


async def test_policies_take_turns_at_a_load_of_what_the_stack_can_do(
    worker_config: WorkerConfig, run_worker: RunWorker, tmp_path: Path
) -> None:
    kafka = worker_config.kafka
    arguments = [
        *("load", "synthetic@class=p0,requests=4,prompt=8,output=4,rate=1"),
        *("--policy", "fifo", "--policy", "htb", "--load", "2", "--timeout-s", "200"),
        *("--bootstrap-servers", kafka.bootstrap_servers, "--topic-prefix", kafka.topic_prefix),
        *("--out", str(tmp_path), "--no-plots"),
    ]
    async with run_worker(worker_config):
        assert await asyncio.to_thread(main, arguments) == 0
    settings, runs = map(orjson.loads((tmp_path / "results.json").read_bytes()).get, ("settings", "runs"))
    assert [(run["policy"], run["load"], run["completed"]) for run in runs] == [("fifo", 2.0, 4), ("htb", 2.0, 4)]
    assert settings["offered_units_s"] == pytest.approx(2 * settings["capacity_units_s"])
    assert main(["compare", *(str(tmp_path / f"requests-{policy}.csv") for policy in ("fifo", "htb"))]) == 0
    # Afterwards the workers have what they had.
    assert await ordered_policies(worker_config) == ["fifo", "htb", None]


async def ordered_policies(config: WorkerConfig) -> list[str | None]:
    """None: taken back."""
    settings = KafkaSettings(config.kafka.bootstrap_servers, client_id="test")
    topic = f"{config.kafka.topic_prefix}.control"
    async with PartitionReader(settings, topic, 0, read_committed=False) as reader:
        records = [record async for batch in reader.read_to_end() for record in batch if record.key == b"policy"]
    return [None if record.value is None else orjson.loads(record.value)["policy"] for record in records]
