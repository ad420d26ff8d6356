"""The training device, and the properties of a machine on which bit-exact results depend."""

import os
import platform
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from pipeline.core import limits
from pipeline.core.environment import CaptureMode, Environment
from pipeline.core.limits import keep_freed_memory
from pipeline.core.refusal import Refusal, counted
from pipeline.inference import gpu_diagnostics

LIBRARIES = ("torch", "torchvision", "numpy")
DECIDING_FLAGS = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "NVIDIA_TF32_OVERRIDE",
    "ATEN_CPU_CAPABILITY",
)
"""Environment variables that change the results of a GPU: its matrix products, and the initial weights, which are drawn on the CPU."""
CPU_FLAGS = ("MKL_", "ONEDNN_", "DNNL_", "OPENBLAS_", "ATEN_CPU_CAPABILITY")
"""Beginnings of the environment variables of PyTorch's CPU libraries. They choose kernels, and so change the results of sums."""
EXTENSIONS = ("avx_vnni", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16")
"""The extensions of AVX2 and AVX512 by which oneDNN chooses its kernels. A hypervisor may hide them from a CPU that has them."""
CPUINFO, UNKNOWN = Path("/proc/cpuinfo"), "unknown"
MODEL_FIELDS = (
    {"vendor_id": "{}", "cpu family": "family {}", "model": "model {}"},
    {"CPU implementer": "implementer {}", "CPU part": "part {}"},
)
"""The fields of /proc/cpuinfo that name the model of a core, on x86 and on ARM, and how they are written."""


@dataclass(frozen=True)
class Machine:
    device: torch.device
    threads: int
    graphs: CaptureMode = "auto"
    """PIPELINE_GRAPHS. It changes no result, so it is not in the fingerprint."""

    @classmethod
    def set_up(cls, environment: Environment) -> "Machine":
        """Choose the device and the number of compute threads, and set up this process for them. Return both as a Machine.

        This sets the number of PyTorch's threads, and configures malloc and cuBLAS. Raises Refusal if the requested device is unavailable.
        """
        # cuBLAS reads this variable at its start; without it, the workspace and the order of summation may differ between runs
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        threads = environment.threads or max(1, limits.usable_cpus() // environment.local_world_size)
        torch.set_num_threads(threads)
        keep_freed_memory()
        return cls(choose_device(device_of_rank(environment)), threads, environment.graphs)

    @property
    def name(self) -> str:
        """The name of the GPU, or the architecture and instruction set of the CPU."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"

    def fingerprint(self) -> dict[str, Any]:
        """Return the properties of this machine that determine the bytes of a result, given equal inputs."""
        libraries = {library: metadata.version(library) for library in LIBRARIES}
        machine = {"device": self.device.type, "name": self.name, "threads": self.threads, "libraries": libraries}
        if self.device.type == "cpu":
            present = torch.cpu.get_capabilities()
            flags = {name: value for name, value in sorted(os.environ.items()) if name.startswith(CPU_FLAGS)}
            cpu = {"cpu": cpu_model(), "extensions": " ".join(name for name in EXTENSIONS if present.get(name))}
            return machine | cpu | ({"flags": flags} if flags else {})
        kernels = {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}  # type: ignore[no-untyped-call]  # untyped in torch
        flags = {name: os.environ.get(name, "") for name in DECIDING_FLAGS}
        return machine | {"cpu": platform.machine(), "kernels": kernels, "flags": flags}

    def memory(self) -> dict[str, float]:
        """Return the peak GPU memory so far, allocated and reserved, in megabytes. On a CPU, return an empty dict."""
        if self.device.type != "cuda":
            return {}
        peaks = torch.cuda.memory_stats(self.device)  # called once: it takes as long as several kernel launches
        return {f"memory/{kind}_megabytes": peaks.get(f"{kind}_bytes.all.peak", 0) / 1e6 for kind in ("allocated", "reserved")}


def cpu_model() -> str:
    """Return the vendor, family and model of this machine's CPU, or the implementer and part of an ARM CPU.

    Return UNKNOWN if the system does not name them. If cores differ, return the models of all.
    """
    try:
        blocks = CPUINFO.read_text(encoding="utf-8", errors="replace").split("\n\n")
    except OSError:
        return UNKNOWN
    cores = [dict(re.findall(r"^(.*?)[ \t]*: (.+)$", block, re.MULTILINE)) for block in blocks if block.startswith("processor")]
    models = {core_model(core) for core in cores}
    return " and ".join(sorted(models)) if models and UNKNOWN not in models else UNKNOWN


def core_model(core: Mapping[str, str]) -> str:
    """Return the model of one core, by its fields of /proc/cpuinfo, or UNKNOWN."""
    for fields in MODEL_FIELDS:
        if core.keys() >= fields.keys():
            return " ".join(text.format(core[field]) for field, text in fields.items())
    return UNKNOWN


def is_known(fingerprint: Mapping[str, Any]) -> bool:
    """Return True if a fingerprint names the machine: the GPU, or the model of the CPU. Otherwise it may be that of several machines.

    Model files of earlier versions do not name the CPU.
    """
    return fingerprint.get("device") != "cpu" or fingerprint.get("cpu", UNKNOWN) != UNKNOWN


def device_of_rank(environment: Environment) -> str:
    """Return the name of the device for this process. If it is one of several on this machine, each gets a usable GPU of its own.

    Raises Refusal if PIPELINE_DEVICE names one GPU for several processes, or if there are too few usable GPUs.
    """
    requested = environment.device
    if environment.local_world_size == 1 or requested == "cpu":
        return requested
    if requested.startswith("cuda:"):
        raise Refusal(
            f"PIPELINE_DEVICE={requested}: is one GPU, but there are {environment.local_world_size} processes: use `cuda` or `auto`"
        )
    usable = usable_gpus()
    if not usable:
        return requested
    if environment.local_rank >= len(usable):
        raise Refusal(
            f"PIPELINE_DEVICE={requested}: this machine has {counted(len(usable), 'usable GPU')}, one for each process, "
            f"but there are {environment.local_world_size} processes: start fewer, or use `cpu`"
        )
    return f"cuda:{usable[environment.local_rank]}"


def choose_device(requested: str) -> torch.device:
    """Return the device for `auto`, `cpu`, `cuda` or `cuda:N`. Raises Refusal if that device cannot be used.

    `auto` chooses the first GPU that can be used, or else the CPU. If the machine has an NVIDIA GPU nevertheless, print a warning with the
    reason.
    """
    if requested == "cpu":
        return torch.device("cpu")
    usable = usable_gpus()
    if not usable:
        reason = obstacle()
        if requested != "auto":
            remedy = reason or "this machine has no NVIDIA GPU: use `auto` or `cpu`"
            raise Refusal(f"PIPELINE_DEVICE={requested}: no CUDA GPU can be used: {remedy}")
        if reason:
            print(f"warning: the NVIDIA GPU of this machine is not used: {reason}", file=sys.stderr, flush=True)
        return torch.device("cpu")
    index = usable[0] if requested == "auto" else int(requested.partition(":")[2] or 0)
    if index >= torch.cuda.device_count():
        raise Refusal(
            f"PIPELINE_DEVICE={requested}: this machine has {torch.cuda.device_count()} GPUs, numbered from 0: use one of these numbers"
        )
    if index not in usable:
        raise Refusal(f"PIPELINE_DEVICE={requested}: {missing_kernels(index)}, or one of the GPUs {', '.join(map(str, usable))}")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def obstacle() -> str | None:
    """Return the reason why PyTorch can use no GPU, and the remedy. Return None if this machine has no NVIDIA GPU."""
    return missing_kernels(0) if cuda_is_available() else gpu_diagnostics.obstacle(torch.version.cuda)


def missing_kernels(index: int) -> str:
    """Return the message that this build of PyTorch has no kernels for the GPU `index`, and the remedy."""
    name, (major, minor) = torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index)
    return (
        f"this build of PyTorch (CUDA {torch.version.cuda}) has kernels for {', '.join(torch.cuda.get_arch_list())}, none of which runs on "
        f"GPU {index} ({name}, sm_{major}{minor}): install another build ({gpu_diagnostics.REBUILD}), or use `PIPELINE_DEVICE=cpu`"
    )


def usable_gpus() -> list[int]:
    """Return the indexes of the GPUs for which this build of PyTorch has kernels; an empty list if CUDA cannot be used at all."""
    if not cuda_is_available():
        return []
    kernels = torch.cuda.get_arch_list()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of a GPU without kernels; `missing_kernels` reports it with the remedy
        capabilities = [torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())]
    return [index for index, capability in enumerate(capabilities) if gpu_diagnostics.has_kernels(capability, kernels)]


def cuda_is_available() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of an old driver; `gpu_diagnostics` reports it with the remedy
        return torch.cuda.is_available()


def set_determinism(deterministic: bool, *, training: bool = False) -> None:
    """If `deterministic`, make operations raise an error if their result differs from run to run. Otherwise allow these operations.

    A training that need not be deterministic also lets cuDNN try its algorithms for each shape, and use the fastest. In inference, this would
    take longer than it saves. TF32 is allowed in all cases.
    """
    # `use_deterministic_algorithms` would import the compiler, which takes two seconds; `beginning.compiled` sets the compiler's own flag
    torch.set_deterministic_debug_mode("error" if deterministic else "default")
    # filling uninitialised memory is a debugging aid that costs up to 15% of the time
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a property of the module's class
    torch.backends.cudnn.benchmark = training and not deterministic
    # these flags take effect only on GPUs that support TF32
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
