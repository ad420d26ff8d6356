"""Samples system metrics during a run, under MLflow's names for them."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from pipeline.tracking import events

FIRST_PAUSE_S, LONGEST_PAUSE_S, GROWTH = 1.0, 30.0, 1.25
Reading = dict[str, float]


class Sampler(threading.Thread):
    """A thread that writes `system.jsonl`: at once, then at growing intervals, so that short runs have metric points too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="system metrics", daemon=True)
        self._path = folder / events.SYSTEM
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Stop after the current sample and wait for it, at most 5 s, so that the file is complete afterwards."""
        self._stopped.set()
        if self.is_alive():
            self.join(timeout=5)

    def run(self) -> None:
        step = sum(1 for _ in events.read(self._path))
        writer, gauges = events.Writer(self._path), [processor_and_memory(), graphics()]
        pause_s = FIRST_PAUSE_S
        while True:
            values = {f"system/{name}": events.number(value) for gauge in gauges for name, value in gauge().items()}
            writer.append({"kind": "metrics", "time_ms": time.time_ns() // 1_000_000, "step": step, "values": values})
            if self._stopped.wait(pause_s):
                return
            step, pause_s = step + 1, min(pause_s * GROWTH, LONGEST_PAUSE_S)


def processor_and_memory() -> Callable[[], Reading]:
    """Return a function that reads the use of CPU, memory and disk."""
    import psutil

    psutil.cpu_percent(interval=0.1)  # initialises `cpu_percent()`, whose first call would return 0

    def gauge() -> Reading:
        memory, disk = psutil.virtual_memory(), psutil.disk_usage("/")
        return {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_megabytes": memory.used / 1e6,
            "system_memory_usage_percentage": memory.percent,
            "disk_usage_percentage": disk.percent,
            "disk_available_megabytes": disk.free / 1e6,
        }

    return gauge


def graphics() -> Callable[[], Reading]:
    """Return a function that reads the metrics of all GPUs; its result is empty where there is none."""
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return dict

    def gauge() -> Reading:
        reading: Reading = {}
        for index, handle in enumerate(handles):
            try:
                memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
                reading[f"gpu_{index}_memory_usage_megabytes"] = memory.used / 1e6
                reading[f"gpu_{index}_memory_usage_percentage"] = 100 * memory.used / memory.total
                reading[f"gpu_{index}_utilization_percentage"] = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
                reading[f"gpu_{index}_power_usage_watts"] = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
            except pynvml.NVMLError:
                continue  # some devices lack some of these metrics
        return reading

    return gauge
