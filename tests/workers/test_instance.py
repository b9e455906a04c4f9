"""Names of workers: unlike among the living, taken over from the dead."""

import subprocess
import sys
from pathlib import Path

import pytest

from workers.instance import Instance, InstanceError


def test_workers_that_live_at_the_same_time_have_different_names(tmp_path: Path) -> None:
    with Instance("cluster", directory=tmp_path) as first, Instance("cluster", directory=tmp_path) as second:
        assert first.name != second.name


def test_a_name_is_taken_over_when_its_worker_has_ended(tmp_path: Path) -> None:
    with Instance("cluster", directory=tmp_path) as first:
        name = first.name
    with Instance("cluster", directory=tmp_path) as second:
        assert second.name == name


def test_a_killed_worker_lets_go_of_its_name(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; from workers.instance import Instance\n"
        "with Instance('cluster', directory=Path(sys.argv[1])) as mine:\n"
        "    print(mine.name, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    with Instance("cluster", directory=tmp_path) as mine:
        assert mine.name == killed.stdout.strip()


def test_another_cluster_has_names_of_its_own(tmp_path: Path) -> None:
    with Instance("one", directory=tmp_path) as first, Instance("two", directory=tmp_path) as second:
        assert first.name == second.name


def test_a_given_name_is_kept() -> None:
    with Instance("cluster", "gpu-7") as mine:
        assert mine.name == "gpu-7"


def test_a_folder_that_cannot_be_written_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InstanceError, match=r"file.*kafka\.instance_id"), Instance("c", directory=tmp_path / "file"):
        raise AssertionError("no name can be locked in a file")
