"""Which device a model runs on, in which number format, with how many threads: decided here and nowhere else.

Knows what the machine has (torch, /proc, cgroups). Does not know the model or its size.

`auto` prefers CUDA. bfloat16 is chosen where the device multiplies it natively: on every CUDA device that torch
calls capable, and on CPUs with AVX512-BF16 or AMX-BF16. Elsewhere torch emulates bfloat16 products, which is several
times slower than float32.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from workers.runners.errors import DeviceError

__all__ = ["Placement", "available_threads", "choose_placement", "computes_bf16", "free_memory_bytes", "gpu_uuid"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_BF16_CPU_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
_CPUINFO = Path("/proc/cpuinfo")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Placement:
    device: torch.device
    dtype: torch.dtype
    threads: int
    """CPU threads of the forward."""

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        threads = f", {self.threads} threads" if self.device.type == "cpu" else ""
        return f"{self.device}, {name}{threads}"


def choose_placement(device: str = "auto", dtype: str = "auto", threads: int | None = None) -> Placement:
    """The placement that configuration asks for. Raises `DeviceError` if the machine doesn't have it.

    device: `auto`, `cpu`, `cuda` or `cuda:N`; dtype: `auto`, `float32`, `bfloat16` or `float16`; threads: all that
    this process may use where None.
    """
    chosen = _device(device)
    return Placement(chosen, _dtype(dtype, chosen), available_threads() if threads is None else threads)


def free_memory_bytes(device: torch.device) -> int:
    """Memory that could be allocated on the device now, in this container."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = int(psutil.virtual_memory().available)
    limit = _cgroup_number(_CGROUP / "memory.max")
    used = _cgroup_number(_CGROUP / "memory.current")
    if limit is not None and used is not None:
        free = min(free, max(limit - used, 0))
    return free


def available_threads() -> int:
    """`OMP_NUM_THREADS` where set; else the cores this process may run on, at most its container's CPU quota."""
    if (stated := os.environ.get("OMP_NUM_THREADS", "")).isdecimal() and int(stated) > 0:
        return int(stated)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cpu_quota(_CGROUP / "cpu.max")
    return cores if quota is None else max(1, min(cores, round(quota)))


def _device(name: str) -> torch.device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda", 0) if count else torch.device("cpu")
    kind, _, index = name.partition(":")
    if kind not in {"cpu", "cuda"} or (index and not (kind == "cuda" and index.isdecimal())):
        raise DeviceError(f"device {name!r} is unknown: say auto, cpu, cuda or cuda:N")
    if kind == "cpu":
        return torch.device("cpu")
    number = int(index or 0)
    if number >= count:
        has = f"has {count} (cuda:0 … cuda:{count - 1})" if count else "has no CUDA device that torch can use"
        raise DeviceError(f"device {name!r} is not there: this machine {has}; say auto or cpu")
    return torch.device("cuda", number)


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if computes_bf16(device) else torch.float32
    if name not in _DTYPES:
        raise DeviceError(f"dtype {name!r} is unknown: say auto, {', '.join(_DTYPES)}")
    if name == "float16" and device.type == "cpu":
        raise DeviceError("dtype 'float16' needs a CUDA device: on the CPU say float32, bfloat16 or auto")
    return _DTYPES[name]


def computes_bf16(device: torch.device) -> bool:
    """Whether it multiplies bfloat16 natively."""
    if device.type == "cuda":
        # Without emulation: compute capability 8.0 and above.
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return bool(_BF16_CPU_FLAGS & _cpu_flags(_CPUINFO))


def _cpu_flags(cpuinfo: Path) -> frozenset[str]:
    """Of the first core; empty where the file is absent (not Linux) or names no flags (not x86)."""
    if not cpuinfo.is_file():
        return frozenset()
    for line in cpuinfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return frozenset()


def _cpu_quota(file: Path) -> float | None:
    """Cores that a cgroup v2 `cpu.max` allows: `QUOTA PERIOD` in µs, or `max PERIOD` for no limit."""
    if not file.is_file():
        return None
    quota, _, period = file.read_text().strip().partition(" ")
    return None if quota == "max" else int(quota) / int(period)


def _cgroup_number(file: Path) -> int | None:
    """A cgroup v2 number; None where the file is absent or says `max`."""
    if not file.is_file():
        return None
    text = file.read_text().strip()
    return None if text == "max" else int(text)


def gpu_uuid(device: torch.device) -> str | None:
    """As NVML names it; None for what is no CUDA device."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else None
