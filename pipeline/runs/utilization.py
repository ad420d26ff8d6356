"""Reads the GPUs through NVML, without torch, and records the use of CPU, memory, disk and GPUs under the names of MLflow's system metrics."""

import contextlib
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.inference import gpu_diagnostics
from pipeline.runs import events


def driver_version() -> str | None:
    """Return the version of the NVIDIA driver; None if no driver is installed. Raises NVMLError if the driver does not answer."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return None
    return str(pynvml.nvmlSystemGetDriverVersion())


def gpus() -> list[Any]:
    """Return the NVML handles of all GPUs; an empty list without a driver that answers."""
    import pynvml

    try:
        return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())] if driver_version() else []
    except pynvml.NVMLError:
        return []


@dataclass(frozen=True)
class Gpu:
    """A GPU. `memory_bytes` and `free_bytes` are 0 if it shares the memory of the CPU. `capability` is the compute capability (major, minor)."""

    name: str
    memory_bytes: int
    free_bytes: int
    capability: tuple[int, int]


@dataclass(frozen=True)
class Gpus:
    """The version of the NVIDIA driver, or None without a driver; the CUDA version of the libcuda that programs load; and the GPUs by NVML's
    index.

    The libcuda may be newer than that of the driver: NVIDIA's images bring such a libcuda (cuda-compat), which works with some older drivers of
    datacenter GPUs.
    """

    driver: str | None
    cuda: str | None
    devices: list[Gpu]


def read_gpus(system: Path) -> Gpus:
    """Return the driver and the GPUs that NVML reports. Without NVML, return no GPUs, and the driver version that the kernel reports, if any."""
    import pynvml

    driver = cuda = None
    with contextlib.suppress(pynvml.NVMLError):
        driver = driver_version()
    if driver is None:
        return Gpus(gpu_diagnostics.driver_version(system), None, [])
    with contextlib.suppress(pynvml.NVMLError):
        version = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        cuda = f"{version // 1000}.{version % 1000 // 10}"
    return Gpus(driver, cuda, [gpu(handle) for handle in gpus()])


def gpu(handle: object) -> Gpu:
    import pynvml

    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        total_bytes, free_bytes = int(memory.total), int(memory.free)
    except pynvml.NVMLError_NotSupported:
        total_bytes = free_bytes = 0
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(str(pynvml.nvmlDeviceGetName(handle)), total_bytes, free_bytes, (major, minor))


def sample(devices: list[Any]) -> dict[str, float]:
    """Return how much of the CPU, the memory, the disk and each GPU is used, as a dict from metric names to values.

    Each name ends with its unit. `devices` are the NVML handles of the GPUs. The use of the CPU is the mean since the previous call. In the
    first call, it is 0.
    """
    import psutil
    import pynvml

    memory, disk = psutil.virtual_memory(), psutil.disk_usage("/")
    values = {
        "cpu_utilization_percentage": psutil.cpu_percent(),
        "system_memory_usage_megabytes": memory.used / 1e6,
        "system_memory_usage_percentage": memory.percent,
        "disk_usage_percentage": disk.percent,
        "disk_available_megabytes": disk.free / 1e6,
    }
    for index, device in enumerate(devices):
        with contextlib.suppress(pynvml.NVMLError):  # some devices lack some of these metrics
            memory = pynvml.nvmlDeviceGetMemoryInfo(device)
            values[f"gpu_{index}_memory_usage_megabytes"] = memory.used / 1e6
            values[f"gpu_{index}_memory_usage_percentage"] = 100 * memory.used / memory.total
            values[f"gpu_{index}_utilization_percentage"] = pynvml.nvmlDeviceGetUtilizationRates(device).gpu
            values[f"gpu_{index}_power_usage_watts"] = pynvml.nvmlDeviceGetPowerUsage(device) / 1000
    return values


FIRST_INTERVAL_S = 0.1
FIRST_PAUSE_S, LONGEST_PAUSE_S, GROWTH = 1.0, 30.0, 1.25


class Sampler(threading.Thread):
    """A thread that appends system metrics to `system.jsonl` at growing intervals. It begins early, so that short runs have some too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="system metrics", daemon=True)
        self._path = folder / events.SYSTEM
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Tell the thread to stop, and wait at most 5 s for it. The thread first finishes the sample that it is recording, so that the last
        line of `system.jsonl` is complete.
        """
        self._stopped.set()
        if self.is_alive():
            self.join(timeout=5)

    def run(self) -> None:
        lines = list(events.read(self._path))
        writer = events.Writer(self._path, end=lines[-1].end if lines else 0)
        devices = gpus()
        sample(devices)  # the use of the CPU is measured since the sample before, so the first sample has none
        time.sleep(FIRST_INTERVAL_S)
        step, pause_s = len(lines), FIRST_PAUSE_S
        while True:
            values = {f"system/{name}": events.number(value) for name, value in sample(devices).items()}
            with contextlib.suppress(OSError):  # a full disk
                writer.append({"kind": "metrics", "time_ms": time.time_ns() // 1_000_000, "step": step, "values": values})
            if self._stopped.wait(pause_s):
                return
            step, pause_s = step + 1, min(pause_s * GROWTH, LONGEST_PAUSE_S)
