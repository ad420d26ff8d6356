"""Measures and records the use of CPU, memory, disk and GPUs during a run, under the names of MLflow's system metrics."""

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

from pipeline.runs import events


def gpus() -> list[Any]:
    """Return the NVML handles of all GPUs; an empty list if no driver is installed."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []


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
            writer.append({"kind": "metrics", "time_ms": time.time_ns() // 1_000_000, "step": step, "values": values})
            if self._stopped.wait(pause_s):
                return
            step, pause_s = step + 1, min(pause_s * GROWTH, LONGEST_PAUSE_S)
