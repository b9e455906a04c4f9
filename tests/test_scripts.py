"""What a newcomer is told when the machine lacks something: one sentence with the remedy, exit code 2, at once."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("bash", "dirname", "env", "head", "ls", "sed")
"""What the scripts themselves use; nothing else is on the PATH they get here."""


def executable(folder: Path, name: str, body: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    file.chmod(0o755)


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        found = [Path(entry) / tool for entry in os.environ["PATH"].split(os.pathsep) if (Path(entry) / tool).exists()]
        (folder / tool).symlink_to(found[0])
    return folder


def run(script: str, path: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    """The exit code and what was said on stderr."""
    answer = subprocess.run(
        [str(path / "bash"), str(ROOT / "scripts" / script), *arguments],
        env={"PATH": str(path), "HOME": str(path), **variables},
        cwd=path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return answer.returncode, answer.stderr


JAVA_8 = 'echo "java version \\"1.8.0_292\\"" >&2'
JAVA_17 = 'echo "Picked up JAVA_TOOL_OPTIONS: -Dx=y" >&2; echo "openjdk version \\"17.0.15\\" 2025-04-15" >&2'
MACOS_STUB = 'echo "Unable to locate a Java Runtime." >&2; exit 1'


@pytest.mark.parametrize(("java", "found"), [(None, "none"), (MACOS_STUB, "none"), (JAVA_8, "8")])
def test_java_that_is_missing_or_too_old_is_named_with_the_remedy(
    bare_path: Path, java: str | None, found: str
) -> None:
    if java is not None:
        executable(bare_path, "java", java)
    code, said = run("require-java.sh", bare_path)
    assert code == 2
    assert f"Java 17 or newer (found: {found}): install it" in said


def test_maven_is_asked_for_only_while_kafka_is_not_fetched_yet(bare_path: Path, tmp_path: Path) -> None:
    executable(bare_path, "java", JAVA_17)
    code, said = run("require-java.sh", bare_path)
    assert code == 2
    assert "Maven, which is not on the PATH: install it" in said
    (tmp_path / "cache" / "kafka" / "4.1.1").mkdir(parents=True)
    assert run("require-java.sh", bare_path, HEADRACE_CACHE_DIR=str(tmp_path / "cache")) == (0, "")


def test_a_java_of_java_home_counts(bare_path: Path, tmp_path: Path) -> None:
    (tmp_path / "jdk" / "bin").mkdir(parents=True)
    executable(tmp_path / "jdk" / "bin", "java", JAVA_17)
    executable(bare_path, "mvn", "exit 0")
    assert run("require-java.sh", bare_path, JAVA_HOME=str(tmp_path / "jdk")) == (0, "")


def test_a_broker_of_ones_own_needs_no_java(bare_path: Path) -> None:
    assert run("require-java.sh", bare_path, HEADRACE_KAFKA__BOOTSTRAP_SERVERS="broker:9092") == (0, "")


def test_a_machine_without_a_fitting_python_is_told_which_fit(bare_path: Path) -> None:
    executable(bare_path, "python3", "exit 1")  # what the question for the version answers when it is too old
    code, said = run("setup.sh", bare_path, "venv")
    assert code == 2
    assert "Headrace needs Python 3.11 to 3.14" in said


def test_the_python_that_make_was_told_of_is_the_one_that_is_asked(bare_path: Path) -> None:
    code, said = run("setup.sh", bare_path, "venv", PYTHON="/no/such/python")
    assert code == 2
    assert "(tried: /no/such/python)" in said


def test_a_python_that_cannot_make_environments_is_named_with_the_remedy(bare_path: Path) -> None:
    python = bare_path / "python3"
    # Debian's python3 without python3-venv: the right version, and `-m venv` fails.
    executable(bare_path, "python3", f'case "$*" in *venv*) exit 1;; *executable*) echo "{python}";; esac')
    executable(bare_path, "uv", "exit 127")  # a shim without a uv behind it
    code, said = run("setup.sh", bare_path, "venv")
    assert code == 2
    assert f"{python} cannot make a virtual environment" in said
    assert "install uv" in said
