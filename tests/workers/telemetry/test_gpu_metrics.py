"""A GPU's metrics, with NVML's own figures; there is no GPU here."""

from types import SimpleNamespace

from workers.telemetry.gpu_metrics import GpuMetrics
from workers.telemetry.metric_catalogue import GPU_ENERGY, GPU_MEMORY, GPU_UTILIZATION
from workers.telemetry.metric_store import MetricStore


class Nvml:
    """The part of `pynvml` that is asked."""

    class NVMLError_NotSupported(Exception):
        pass

    def __init__(self, *energies_mj: int) -> None:
        self._energies_mj = list(energies_mj)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return f"handle of {uuid}"

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:
        assert handle == "handle of GPU-1"
        return SimpleNamespace(gpu=87, memory=40)

    def nvmlDeviceGetMemoryInfo(self, _handle: str) -> SimpleNamespace:
        return SimpleNamespace(total=100, free=30, used=70)

    def nvmlDeviceGetTotalEnergyConsumption(self, _handle: str) -> int:
        if not self._energies_mj:
            raise self.NVMLError_NotSupported
        return self._energies_mj.pop(0)


def store_of(nvml: Nvml) -> MetricStore:
    store = MetricStore([GPU_UTILIZATION, GPU_MEMORY, GPU_ENERGY])
    store.read_from(GpuMetrics(nvml, "GPU-1").read)
    return store


def test_energy_counts_from_the_workers_start() -> None:
    reading = store_of(Nvml(5_000_000, 5_012_500)).read()
    assert reading.of(GPU_ENERGY) == {("GPU-1",): 12.5}
    assert reading.of(GPU_UTILIZATION) == {("GPU-1",): 0.87}
    assert reading.of(GPU_MEMORY) == {("GPU-1",): 70}


def test_a_device_that_does_not_tell_its_energy_has_no_such_series() -> None:
    reading = store_of(Nvml()).read()
    assert reading.of(GPU_ENERGY) == {}
    assert reading.of(GPU_UTILIZATION) == {("GPU-1",): 0.87}
