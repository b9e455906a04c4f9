"""The repository itself: what a fresh clone relies on, and what must never get into it."""

import importlib.metadata
import os
import re
import subprocess
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from topics.extras import Extra
from workers.cli import main

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = frozenset(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
PINS = dict(line.split("==") for line in CONSTRAINTS)

EXTRAS = ("worker", "batch", "bench", "dev")
"""What scripts/setup.sh installs."""


# --- make and CI ------------------------------------------------------------


@pytest.mark.parametrize(
    "target", ["demo", "test", "lint", "types", "properties", "chaos", "bench-engine", "bench-delivery", "clean"]
)
def test_make_knows_the_target(target: str) -> None:
    answer = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert answer.returncode == 0, answer.stderr


def test_make_runs_only_tests_that_exist() -> None:
    named = set(re.findall(r"\btests/[\w./]+", MAKEFILE))
    assert named
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_make_alone_says_what_there_is() -> None:
    answer = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert set(re.findall(r"^  make (\S+)", answer.stdout, re.MULTILINE)) == TARGETS - {"java"}


def test_ci_runs_what_a_developer_runs() -> None:
    run = ROOT / ".ci" / "run"
    assert os.access(run, os.X_OK)
    assert "exec make test" in run.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", sorted(path.name for path in ROOT.glob("*.md")))
def test_pages_name_only_make_targets_that_exist(page: str) -> None:
    named = set(re.findall(r"\bmake ([a-z][a-z-]+)`", (ROOT / page).read_text(encoding="utf-8")))
    assert named <= TARGETS


@pytest.mark.parametrize("page", sorted(path.name for path in ROOT.glob("*.md")))
def test_pages_name_only_files_that_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:workers|scheduling|kvcache|topics|tests|scripts|docs)/[\w/.-]*)`", text))
    linked = set(re.findall(r"\]\((?!https?:|#)([^)#]+)", text))
    assert {name for name in named | linked if not (ROOT / name).exists()} == set()


@pytest.mark.parametrize("name", [*sorted(path.name for path in (ROOT / "scripts").glob("*.sh")), "../.ci/run"])
def test_scripts_can_be_run_and_parse(name: str) -> None:
    script = ROOT / "scripts" / name
    assert os.access(script, os.X_OK)
    assert script.read_text(encoding="utf-8").startswith("#!/usr/bin/env bash\n")
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=60)


# --- pins -------------------------------------------------------------------


def test_constraints_are_names_and_versions_in_order() -> None:
    # A local version (+cpu), an address or a marker would tie the pins to one machine or index.
    assert [line for line in CONSTRAINTS if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*==[0-9][a-z0-9.]*", line)] == []
    assert len(PINS) == len(CONSTRAINTS)
    assert sorted(CONSTRAINTS) == CONSTRAINTS


def required_packages() -> Iterator[str]:
    """All that `pip install '.[worker,batch,bench,dev]'` brings on this machine."""
    project = PYPROJECT["project"]
    direct = [*project["dependencies"], *(line for extra in EXTRAS for line in project["optional-dependencies"][extra])]
    waiting = [Requirement(line) for line in direct]
    seen = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        yield name
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            needed = map(Requirement, importlib.metadata.requires(name) or ())
            waiting += [one for one in needed if one.marker is None or one.marker.evaluate({"extra": extra})]


def test_every_package_that_is_installed_is_pinned_at_its_version() -> None:
    installed = {name: importlib.metadata.version(name) for name in required_packages()}
    assert {"torch", "aiokafka", "pytest", "typing-extensions"} <= installed.keys()
    assert {name: version for name, version in installed.items() if PINS.get(name) != version} == {}


def test_messages_name_extras_that_are_there() -> None:
    assert set(get_args(Extra)) <= set(EXTRAS) <= PYPROJECT["project"]["optional-dependencies"].keys()


# --- packaging --------------------------------------------------------------


def test_the_console_script_is_the_command_line() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="headrace")
    assert script.load() is main


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names in the wheel that the pinned build backend makes of this tree."""
    (path,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"])
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def test_the_wheel_holds_the_four_packages_and_nothing_else(wheel: list[str]) -> None:
    assert {name.split("/")[0] for name in wheel if ".dist-info/" not in name} == {
        "workers",
        "scheduling",
        "kvcache",
        "topics",
    }
    assert "workers/cli.py" in wheel
    assert any(name.endswith("/licenses/LICENSE") for name in wheel)


def test_the_base_install_has_no_torch() -> None:
    base = {canonicalize_name(Requirement(line).name) for line in PYPROJECT["project"]["dependencies"]}
    assert {"aiokafka", "orjson", "pydantic"} <= base
    assert base.isdisjoint({"torch", "transformers", "numpy", "safetensors", "gguf"})


# --- what must not be in the tree -------------------------------------------

FORBIDDEN = {
    # Written with a break in it, so that this file does not hold what it looks for.
    "a package registry's address": re.compile(
        "|".join(
            (
                r"pypi\.(org|python)",
                r"python" + r"hosted\.org",
                r"repo1?\.maven",
                r"proxy\.golang",
                r"npm" + r"js\.(org|com)",
                r"crates\.io" + r"/",
                r"deb\.debian",
                r"--(extra-)?index" + r"-url",
            )
        )
    ),
    "a path of one machine": re.compile(r"(?<![\w.])/(work|root)/[\w.]|/tmp" + r"/env\b|\.pyenv" + r"/|/Users/\w"),
}


def tracked_files() -> list[Path]:
    try:
        answer = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, timeout=60, check=False)
    except FileNotFoundError:
        pytest.skip("git is not on the PATH")
    if answer.returncode != 0:
        pytest.skip("not a git checkout")
    # A file may be deleted and not yet committed.
    return [path for name in answer.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


def lines_with(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_the_tree_names_no(what: str) -> None:
    paths = tracked_files()
    assert len(paths) > 10
    assert lines_with(FORBIDDEN[what], paths) == []


def test_the_tree_needs_nothing_beside_itself() -> None:
    # A clone has no neighbours. Tests may look for some and skip; what ships may not.
    shipped = [path for path in tracked_files() if path.relative_to(ROOT).parts[0] not in ("tests", "benchmarks")]
    assert lines_with(re.compile(r"\.\./" + "shared"), shipped) == []


def test_no_file_is_too_large_for_a_clone() -> None:
    limit_bytes = 2 * 2**20
    assert [str(path) for path in tracked_files() if path.stat().st_size > limit_bytes] == []
