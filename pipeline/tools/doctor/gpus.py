"""Checks the NVIDIA driver and the GPUs."""

import os

from pipeline.inference import gpu_diagnostics
from pipeline.inference.gpu_diagnostics import dot, major
from pipeline.runs.utilization import Gpu
from pipeline.tools.doctor.finding import Context, Finding, Status, cuda_of_torch, ok, problem, warning

GIB = 2**30
MOST_IN_USE = 0.2


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


def describe(gpu: Gpu) -> str:
    memory = f"{gpu.free_bytes / GIB:.1f} of {gpu.memory_bytes / GIB:.1f} GiB free" if gpu.memory_bytes else "memory shared with the CPU"
    return f"{gpu.name}, {memory}, compute capability {dot(gpu.capability)}"
