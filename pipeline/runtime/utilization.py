"""Measures the use of CPU, memory, disk and GPUs. The values have the names of MLflow's system metrics."""

import contextlib
from typing import Any


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
