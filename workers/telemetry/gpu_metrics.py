"""Metrics of the GPU that a worker computes on, as NVML has them.

Knows NVML by its Python bindings (`nvidia-ml-py`) and one device by its UUID, which is the same whatever
CUDA_VISIBLE_DEVICES hides. Does not know what runs there. What a device doesn't tell (energy, below Volta) is left out.
NVML may be called from any thread.
"""

import logging
from typing import Any

from workers.telemetry import metric_catalogue as ours
from workers.telemetry.metric_store import Reading

__all__ = ["GpuMetrics", "gpu_metrics"]

log = logging.getLogger(__name__)

_JOULES = 1e-3
"""NVML counts millijoules."""
_PERCENT = 0.01


class GpuMetrics:
    def __init__(self, nvml: Any, uuid: str) -> None:
        """`nvml`: the module `pynvml`, initialised. Raises its `NVMLError` for a device that it doesn't know."""
        self._nvml = nvml
        self._uuid = uuid
        self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        self._energy_before_j = self._energy_j()

    def read(self, reading: Reading) -> None:
        nvml, handle = self._nvml, self._handle
        reading.set(ours.GPU_UTILIZATION, nvml.nvmlDeviceGetUtilizationRates(handle).gpu * _PERCENT, self._uuid)
        reading.set(ours.GPU_MEMORY, nvml.nvmlDeviceGetMemoryInfo(handle).used, self._uuid)
        energy_j = self._energy_j()
        if energy_j is not None and self._energy_before_j is not None:
            reading.set(ours.GPU_ENERGY, energy_j - self._energy_before_j, self._uuid)

    def _energy_j(self) -> float | None:
        try:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) * _JOULES
        except self._nvml.NVMLError_NotSupported:
            return None


def gpu_metrics(uuid: str) -> GpuMetrics | None:
    """None, with a warning, where NVML is not to be had."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return GpuMetrics(pynvml, uuid)
    except pynvml.NVMLError as error:
        log.warning("the GPU's metrics are not exported: NVML says %s", error)
        return None
