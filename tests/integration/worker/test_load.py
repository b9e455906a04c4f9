"""`headrace load` against a worker with the real model: every request is answered with the trace's lengths."""

import asyncio
import os
from pathlib import Path

import orjson
import pytest

from tests.integration.worker.conftest import RunWorker
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
