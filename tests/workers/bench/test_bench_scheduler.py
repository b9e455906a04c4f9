"""`headrace bench scheduler`: every policy goes through it, counts add up, and the JSON has its figures."""

import json
from pathlib import Path

import pytest

from scheduling.policies import POLICIES
from workers.bench import scheduler as bench_scheduler
from workers.bench.scheduler import HEAPQ
from workers.cli import main


@pytest.mark.parametrize("policy", [HEAPQ, *POLICIES])
def test_a_run_dispatches_all_that_was_enqueued(policy: str) -> None:
    shown: list[str] = []
    options = ["--policy", policy, "--depth", "300", "--flows", "30", "--requests", "400"]
    bench_scheduler.main(options, shown.append)
    result = json.loads(shown[0])
    assert result["dispatched"] >= 300 + 400
    assert 0 < result["mean_us"] < result["p99_us"] * 100


def test_the_command_writes_figures_by_policy_and_depth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bench.json"
    options = ["--depth", "200", "--policy", "htb", "--requests", "100", "--repeats", "1", "--out", str(out)]
    assert main(["bench", "scheduler", *options]) == 0
    record = json.loads(out.read_text(encoding="utf-8"))
    assert set(record["figures"]) == {HEAPQ, "htb"}
    assert record["figures"]["htb"]["200"]["ratio_heapq"] > 0
    assert len(record["runs"]) == 2
    assert "settle" in capsys.readouterr().err
