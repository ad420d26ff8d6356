"""Reads the GPUs through NVML, without torch. Checks the NVIDIA driver, the GPUs, and the precisions that the hardware computes fast."""

import os
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pipeline.inference import gpu_diagnostics
from pipeline.inference.gpu_diagnostics import BF16_CAPABILITY, FP16_CAPABILITY, dot, major
from pipeline.tools.doctor.finding import Context, Finding, Status, ok, problem, warning
from pipeline.tracking import utilization

CUDA_OF_TORCH = re.compile(r"^cuda\b.*= *'([\d.]+)'", re.MULTILINE)
GIB = 2**30
MOST_IN_USE = 0.2
TENSOR_CORES = (7, 0)
BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags in /proc/cpuinfo of CPUs with bf16 instructions: the first two of Intel and AMD, the last of ARM."""


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


def read_gpus(system: Path) -> Gpus:
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


def driver(context: Context) -> Finding:
    """Compare the NVIDIA driver with the CUDA version of torch. The status is `problem` only if PIPELINE_DEVICE demands a GPU."""
    needed, found = cuda_of_torch(), context.gpus
    if found.cuda and needed:
        too_old = int(major(found.cuda)) < int(major(needed))
    else:
        too_old = gpu_diagnostics.is_too_old(found.driver or "0", needed)
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in gpu_diagnostics.HIDING
    if found.devices and needed and not too_old and not hidden:
        supported = f" (up to CUDA {found.cuda})" if found.cuda else ""
        return ok(f"NVIDIA driver {found.driver}{supported}, torch is built for CUDA {needed}")
    obstacle = gpu_diagnostics.obstacle(needed, system=context.system, driver=found.driver)
    demanded = context.environment.device.startswith("cuda")
    if obstacle:
        text, _, remedy = obstacle.partition(": ")
        status: Status = "problem" if demanded else "ok" if context.environment.device == "cpu" else "warning"
        return Finding(status, text, remedy)
    if demanded:
        text = f"PIPELINE_DEVICE={context.environment.device}, but this machine has no NVIDIA GPU"
        return problem(text, "`unset PIPELINE_DEVICE`, or run on a machine with a GPU")
    return ok("no NVIDIA GPU: training runs on the CPU")


def gpus(context: Context) -> Finding:
    """List the GPUs with memory and compute capability. The status is `problem` if torch has none of the kernels that PIPELINE_DEVICE demands."""
    devices = context.gpus.devices
    if not devices:
        return ok("none")
    text = "; ".join(f"{index}: {describe(gpu)}" for index, gpu in enumerate(devices))
    oldest = gpu_diagnostics.oldest_capability(cuda_of_torch())
    too_old = [index for index, gpu in enumerate(devices) if gpu.capability < oldest]
    if too_old and context.environment.device != "cpu":
        text += f". torch's CUDA {cuda_of_torch()} needs compute capability {dot(oldest)}, which GPU {', '.join(map(str, too_old))} lacks"
        if len(too_old) == len(devices):
            status: Status = "problem" if context.environment.device.startswith("cuda") else "warning"
            return Finding(status, text, f"`export PIPELINE_DEVICE=cpu`, or another build of torch ({gpu_diagnostics.REBUILD})")
        others = ",".join(str(index) for index in range(len(devices)) if index not in too_old)
        return warning(text, f"`export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={others}`")
    in_use = [index for index, gpu in enumerate(devices) if gpu.free_bytes < (1 - MOST_IN_USE) * gpu.memory_bytes]
    if in_use:
        return warning(f"{text}. Other processes use memory of GPU {', '.join(map(str, in_use))}", "`nvidia-smi` names the processes")
    return ok(text)


def precision(context: Context) -> Finding:
    """List the precisions that are fast on this hardware, and those that are slow."""
    if context.gpus.devices and context.environment.device != "cpu":
        lowest = min(gpu.capability for gpu in context.gpus.devices)
        fast = ["fp32", *(["TF32", "bf16"] if lowest >= BF16_CAPABILITY else []), *(["fp16"] if lowest >= FP16_CAPABILITY else [])]
        slow = ". fp16 is not faster without tensor cores" if lowest < TENSOR_CORES else ""
        return ok(f"{', '.join(fast)} (compute capability {dot(lowest)}){slow}")
    try:
        flags = set((context.system / "proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        flags = set()
    if found := sorted(flags & BF16_FLAGS):
        return ok(f"fp32 and bf16 on the CPU ({', '.join(found)}); fp16 is slow")
    return ok("fp32 on the CPU; bf16 and fp16 are slow, because this CPU has no instructions for them")


def describe(gpu: Gpu) -> str:
    memory = f"{gpu.free_bytes / GIB:.1f} of {gpu.memory_bytes / GIB:.1f} GiB free" if gpu.memory_bytes else "memory shared with the CPU"
    return f"{gpu.name}, {memory}, compute capability {dot(gpu.capability)}"
