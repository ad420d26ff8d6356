"""Reads the version of the NVIDIA driver and the properties of its GPUs through NVML, without torch, whose import takes seconds."""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pipeline.inference import gpu_diagnostics
from pipeline.tracking import utilization

CUDA_OF_TORCH = re.compile(r"^cuda\b.*= *'([\d.]+)'", re.MULTILINE)


@dataclass(frozen=True)
class Gpu:
    """A GPU. `memory_bytes` and `free_bytes` are 0 if it shares the memory of the CPU. `capability` is the compute capability (major, minor)."""

    name: str
    memory_bytes: int
    free_bytes: int
    capability: tuple[int, int]


@dataclass(frozen=True)
class Gpus:
    """The version of the NVIDIA driver, or None without a driver; the CUDA version of its libcuda; and its GPUs by NVML's index."""

    driver: str | None
    cuda: str | None
    devices: list[Gpu]


def read(system: Path) -> Gpus:
    """Return the driver and the GPUs that NVML reports. Without NVML, return no GPUs, and the driver version that the kernel reports, if any."""
    import pynvml

    handles = utilization.gpus()
    try:
        driver = str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return Gpus(gpu_diagnostics.driver_version(system), None, [])
    return Gpus(driver, cuda_of_driver(), [gpu(handle) for handle in handles])


def cuda_of_driver() -> str | None:
    """Return the CUDA version of the libcuda that programs load, or None without one. It may be newer than that of the driver: NVIDIA's
    images bring such a libcuda (cuda-compat), which works with some older drivers of datacenter GPUs.
    """
    import pynvml

    try:
        version = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    except pynvml.NVMLError:
        return None
    return f"{version // 1000}.{version % 1000 // 10}"


def gpu(handle: object) -> Gpu:
    import pynvml

    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        total_bytes, free_bytes = int(memory.total), int(memory.free)
    except pynvml.NVMLError_NotSupported:
        total_bytes = free_bytes = 0
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(str(pynvml.nvmlDeviceGetName(handle)), total_bytes, free_bytes, (major, minor))


def cuda_of_torch() -> str | None:
    """Return the CUDA version with which torch was built, such as "13.2"; None if torch was built without CUDA or is not installed."""
    match = CUDA_OF_TORCH.search(version_file("torch"))
    return match[1] if match else None


def version_file(package: str) -> str:
    """Return the text of `version.py` of an installed package, which is not imported; "" if it has none."""
    found = find_spec(package)
    path = Path(found.origin).with_name("version.py") if found and found.origin else Path()
    return path.read_text(encoding="utf-8") if path.is_file() else ""
