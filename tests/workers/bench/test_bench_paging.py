"""`headrace bench paging` on a simulated runner: prefixes are found, and its JSON has its figures."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from scheduling.step_time import LinearStepTime
from workers.cli import main
from workers.models import loaded_model
from workers.runners.runner import ModelLimits
from workers.runs.simulated_runner import SimulatedRunner, VirtualClock


def test_its_figures_are_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limits = ModelLimits(context_tokens=256, vocabulary=97, eos_token_ids=frozenset())
    runner = SimulatedRunner(LinearStepTime(), VirtualClock(), limits, num_blocks=200, block_size=4)
    monkeypatch.setattr(
        loaded_model, "load_model", lambda *_: SimpleNamespace(runner=runner, limits=limits, dtype="float32")
    )
    out = tmp_path / "paging.json"
    sizes = {"sequences": 4, "context": 32, "steps": 6, "prefix": 40, "suffix": 6, "pairs": 3}
    flags = [part for name, value in sizes.items() for part in (f"--{name}", str(value))]
    assert main(["bench", "paging", *flags, "--out", str(out)]) == 0
    record = json.loads(out.read_bytes())
    assert len(record["runs"]) == 6 + 3
    assert record["figures"].keys() == {
        "accounting_ms",
        "step_ms",
        "accounting_share",
        "hit_ms",
        "suffix_ms",
        "full_ms",
        "hit_over_suffix",
    }
    assert record["figures"]["accounting_ms"] > 0
