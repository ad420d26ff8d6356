"""Finds out why PyTorch cannot use the NVIDIA GPU of this machine, and the remedy."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

SYSTEM = Path("/")
NVIDIA, DISPLAY, ACCELERATOR = "0x10de", "0x03", "0x12"
"""NVIDIA's PCI vendor id, and the prefixes of the PCI classes of GPUs: display controllers and processing accelerators."""
OLDEST_DRIVER = {"12": 525, "13": 580}
"""The oldest driver that supports each major version of CUDA, from https://docs.nvidia.com/deploy/cuda-compatibility/."""
OLDEST_CAPABILITY = {"12": (5, 0), "13": (7, 5)}
"""The oldest compute capability for which each major version of CUDA compiles."""
BF16_CAPABILITY, FP16_CAPABILITY = (8, 0), (5, 3)
WSL_DEVICE, WSL_LIBRARY = "dev/dxg", "usr/lib/wsl/lib/libcuda.so.1"
"""The device of WSL2 for the GPUs of all vendors, and the library that is there if the driver of Windows is NVIDIA's."""
REBUILD = "docs/container.md#older-drivers-and-gpus"
ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
HIDING = ("", "-1", "none")
"""Values of CUDA_VISIBLE_DEVICES that hide all GPUs."""


def obstacle(cuda: str | None, *, system: Path = SYSTEM, driver: str | None = None) -> str | None:
    """Return the reason why PyTorch finds no GPU, and the remedy. Return None if this machine has no NVIDIA GPU.

    `cuda` is the CUDA version that PyTorch was built with, such as "13.2", or None for a build without CUDA. `system` is the root of the
    file system. `driver` is the version of the driver if it is known already.
    """
    driver = driver or driver_version(system)
    on_wsl = (system / WSL_DEVICE).exists()
    has_driver = driver is not None or (on_wsl and (system / WSL_LIBRARY).exists())
    if not has_driver and not any(map(is_gpu, (system / "sys/bus/pci/devices").glob("*"))):
        return None
    if cuda is None:
        return "this build of PyTorch has no CUDA support: install from requirements.lock"
    oldest = OLDEST_DRIVER.get(major(cuda), 0)
    if not has_driver:
        return f"the NVIDIA driver is not loaded: install it{f', version {oldest} or newer' if oldest else ''}"
    if driver and is_too_old(driver, cuda):
        return f"the NVIDIA driver {driver} is too old for CUDA {cuda}: install driver {oldest} or newer, or another build ({REBUILD})"
    if not on_wsl and not (system / "dev/nvidiactl").exists():
        return "the GPU is not available in this container: start the container with `docker run --gpus all` (NVIDIA Container Toolkit)"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in HIDING
    windows = f"; on WSL2 the driver is that of Windows: {oldest} or newer" if on_wsl else ""
    unknown = f"CUDA cannot initialize the GPU: run `nvidia-smi` for the reason{windows}"
    return "CUDA_VISIBLE_DEVICES hides the GPU: unset it" if hidden else unknown


def major(version: str) -> str:
    return version.partition(".")[0]


def is_too_old(driver: str, cuda: str | None) -> bool:
    """Return True if the driver does not support the CUDA version of PyTorch; False for a build without CUDA."""
    return int(major(driver)) < OLDEST_DRIVER.get(major(cuda or ""), 0)


def oldest_capability(cuda: str | None) -> tuple[int, int]:
    """Return the oldest compute capability that a build of PyTorch with this CUDA version supports; (0, 0) if it is not known."""
    return OLDEST_CAPABILITY.get(major(cuda or ""), (0, 0))


def has_kernels(capability: tuple[int, int], architectures: Iterable[str]) -> bool:
    """Return True if a GPU of this compute capability runs the kernels that were compiled for `architectures`.

    `architectures` are those of `torch.cuda.get_arch_list()`. `sm_86` runs on GPUs of the same major version and no older minor version.
    `compute_86` is compiled by the driver, for each GPU that is no older. A suffix, as in `sm_90a`, limits them to this version. If no
    entry has this form, as in a build for ROCm, the answer is True.
    """
    found = [match.groups() for match in map(ARCHITECTURE.fullmatch, architectures) if match]
    for kind, digits, minor, suffix in found:
        compiled = int(digits), int(minor)
        newer = not suffix and capability >= compiled and (kind == "compute" or capability[0] == compiled[0])
        if capability == compiled or newer:
            return True
    return not found


def dot(capability: tuple[int, int]) -> str:
    """Return a compute capability as text, such as `8.0`."""
    return f"{capability[0]}.{capability[1]}"


def driver_version(system: Path) -> str | None:
    """Return the version of the NVIDIA driver, or None if no driver is loaded. Also works in a container without access to the GPU."""
    try:
        text = (system / "proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", text)
    return match[1] if match else None


def is_gpu(device: Path) -> bool:
    try:
        vendor, kind = ((device / name).read_text(encoding="ascii").strip() for name in ("vendor", "class"))
    except OSError:
        return False
    return vendor == NVIDIA and kind.startswith((DISPLAY, ACCELERATOR))
