"""The device that trains, and what of a machine decides bits."""

import ctypes
import os
import platform
import sys
import warnings
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch

from pipeline.refusal import Refusal
from pipeline.runtime import cgroup, gpu_diagnostics
from pipeline.runtime.environment import Environment

LIBRARIES = ("torch", "torchvision", "numpy")
DECIDING_FLAGS = ("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE")
"""Variables of others that decide a GPU's sums."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""As glibc's malloc.h numbers what `mallopt` sets."""


@dataclass(frozen=True)
class Machine:
    device: torch.device
    threads: int

    @classmethod
    def claim(cls, environment: Environment) -> "Machine":
        """Choose the device, set the number of compute threads and how memory is kept. Raises Refusal for a device that is not there."""
        # read by cuBLAS when it starts; without it its workspace, and so its sums, may differ between runs
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        threads = environment.threads or cgroup.usable_cpus()
        torch.set_num_threads(threads)
        keep_freed_memory()
        return cls(choose_device(environment.device), threads)

    @property
    def name(self) -> str:
        """The GPU's name, or the CPU's instruction set, on which its bits depend."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"

    def fingerprint(self) -> dict[str, Any]:
        """What else than the inputs decides the bytes of a result."""
        libraries = {library: metadata.version(library) for library in LIBRARIES}
        found = {"device": self.device.type, "name": self.name, "threads": self.threads, "libraries": libraries}
        if self.device.type == "cpu":
            return found
        kernels = {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}  # type: ignore[no-untyped-call]  # torch's own, without types
        return found | {"kernels": kernels, "flags": {name: os.environ.get(name, "") for name in DECIDING_FLAGS}}

    def memory(self) -> dict[str, float]:
        """Megabytes of GPU memory allocated and reserved at most so far; empty on a CPU."""
        if self.device.type != "cuda":
            return {}
        peaks = torch.cuda.memory_stats(self.device)  # once: it takes as long as some launches
        return {f"memory/{kind}_megabytes": peaks.get(f"{kind}_bytes.all.peak", 0) / 1e6 for kind in ("allocated", "reserved")}


def choose_device(wish: str) -> torch.device:
    """`auto`, `cpu`, `cuda` or `cuda:N` as a device that exists; of a GPU that is there and cannot be used, `auto` says why."""
    if wish == "cpu":
        return torch.device("cpu")
    if not cuda_is_available():
        obstacle = gpu_diagnostics.obstacle(torch.version.cuda)
        if wish != "auto":
            remedy = obstacle or "there is none: write `auto` or `cpu`"
            raise Refusal(f"PIPELINE_DEVICE={wish}: no CUDA GPU can be used: {remedy}")
        if obstacle:
            print(f"warning: the NVIDIA GPU of this machine is not used: {obstacle}", file=sys.stderr, flush=True)
        return torch.device("cpu")
    index = int(wish.partition(":")[2] or 0)
    if index >= torch.cuda.device_count():
        raise Refusal(f"PIPELINE_DEVICE={wish}: there are {torch.cuda.device_count()} GPUs, numbered from 0: name one of them")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def cuda_is_available() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own words on an old driver, which `graphics` says with the remedy
        return torch.cuda.is_available()


def set_determinism(deterministic: bool) -> None:
    """Refuse operations without a deterministic form. cuDNN never chooses by timing; the compiler may, where nothing is refused."""
    # `use_deterministic_algorithms` would import the compiler, which takes two seconds; `compilation` sets the compiler's own switch
    torch.set_deterministic_debug_mode("error" if deterministic else "default")
    # filling fresh memory finds reads of it, which is a debugging aid, at up to 15% of the time
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a property of the module's class
    torch.backends.cudnn.benchmark = False
    # TF32 on GPUs that have it; a CPU computes in full
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True


def keep_freed_memory() -> None:
    """Let glibc keep what one step frees for the next. By itself it gives large tensors back to the system, which clears every page of the next
    ones: a tenth of a step of resnet or MobileNet on a CPU. On a GPU torch keeps memory by itself; other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        any(mallopt(M_MMAP_THRESHOLD, size) for size in (2**30, 2**25))  # before 2.35 it takes no more than the latter
