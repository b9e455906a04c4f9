"""The rules of deploy/prometheus: what they ask for is exported, and their tests pass where promtool is to be had."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from workers.telemetry.metric import Kind
from workers.telemetry.metric_compat import declared

FOLDER = Path(__file__).parents[1] / "deploy" / "prometheus"
RULES = sorted((FOLDER / "rules").glob("*.yml"))
PROMTOOL = shutil.which("promtool")
NO_PROMTOOL = "promtool is not on the PATH (Debian: apt-get install prometheus)"


def series() -> set[str]:
    names: set[str] = set()
    for metric in declared(()):
        name = metric.prometheus_name
        names |= {f"{name}_{part}" for part in ("bucket", "sum", "count")} if metric.kind is Kind.HISTOGRAM else {name}
    return names


@pytest.mark.parametrize("file", RULES, ids=lambda file: file.stem)
def test_rules_ask_for_series_that_are_exported_or_recorded(file: Path) -> None:
    rules = [rule for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]
    asked = set(re.findall(r"\b(?:headrace|gen_ai|messaging)[a-z0-9_:]*", " ".join(rule["expr"] for rule in rules)))
    recorded = {rule["record"] for rule in rules if "record" in rule}
    assert asked <= series() | recorded, f"not exported: {asked - series() - recorded}"
    assert asked


@pytest.mark.parametrize("file", RULES, ids=lambda file: file.stem)
def test_every_alert_is_explained(file: Path) -> None:
    page = (FOLDER.parents[1] / "docs" / "observability.md").read_text(encoding="utf-8")
    rules = [rule for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]
    assert not [rule["alert"] for rule in rules if "alert" in rule and f"`{rule['alert']}`" not in page]


@pytest.mark.skipif(PROMTOOL is None, reason=NO_PROMTOOL)
@pytest.mark.parametrize("file", sorted((FOLDER / "tests").glob("*.yml")), ids=lambda file: file.stem)
def test_promtool_agrees(file: Path) -> None:
    assert PROMTOOL is not None
    command = [PROMTOOL, "test", "rules", str(file)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
