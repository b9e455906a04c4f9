from pathlib import Path

import pytest
import torch

from workers.models import devices
from workers.models.devices import Placement, available_threads, choose_placement, free_memory_bytes
from workers.runners.errors import DeviceError


def cpuinfo(folder: Path, flags: str) -> Path:
    file = folder / "cpuinfo"
    file.write_text(f"processor\t: 0\nmodel name\t: some CPU\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    return file


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [
        ("fpu avx2 fma", torch.float32),
        ("fpu avx2 avx512f avx512_bf16", torch.bfloat16),
        ("fpu amx_tile amx_bf16", torch.bfloat16),
    ],
)
def test_auto_dtype_on_the_cpu_is_bfloat16_only_where_it_is_native(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(devices, "_CPUINFO", cpuinfo(tmp_path, flags))
    assert choose_placement("cpu", "auto").dtype is dtype


def test_auto_dtype_without_cpuinfo_is_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_CPUINFO", tmp_path / "absent")
    assert choose_placement("cpu", "auto").dtype is torch.float32


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cuda:-1", "cpu:1", "tpu:0"])
def test_unknown_devices_are_refused_with_the_choices(device: str) -> None:
    with pytest.raises(DeviceError, match="say auto, cpu, cuda or cuda:N"):
        choose_placement(device)


def test_an_absent_cuda_device_is_refused_by_name() -> None:
    with pytest.raises(DeviceError, match=r"'cuda:99' is not there"):
        choose_placement("cuda:99")


def test_float16_on_the_cpu_is_refused() -> None:
    with pytest.raises(DeviceError, match="float16"):
        choose_placement("cpu", "float16")


def test_threads_are_what_is_said() -> None:
    assert choose_placement("cpu", "float32", threads=3) == Placement(torch.device("cpu"), torch.float32, 3)


def test_omp_num_threads_counts_before_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert available_threads() == 7


def test_a_cpu_quota_bounds_the_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(64)))
    monkeypatch.setattr(devices, "_CGROUP", tmp_path)
    assert available_threads() == 64
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    assert available_threads() == 2
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert available_threads() == 64


def test_free_memory_is_bounded_by_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_CGROUP", tmp_path)
    machine = free_memory_bytes(torch.device("cpu"))
    assert machine > 10_000
    (tmp_path / "memory.max").write_text("10000\n")
    (tmp_path / "memory.current").write_text("4000\n")
    assert free_memory_bytes(torch.device("cpu")) == 6000
