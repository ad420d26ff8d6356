"""What keeps PyTorch from the NVIDIA GPU of a machine that has one, and what mends it."""

import os
import re
from pathlib import Path

SYSTEM = Path("/")
NVIDIA, DISPLAY, ACCELERATOR = "0x10de", "0x03", "0x12"
"""The vendor and the classes of its devices on the PCI bus that are GPUs."""
OLDEST_DRIVER = {"12": 525, "13": 580}
"""By CUDA's major version: https://docs.nvidia.com/deploy/cuda-compatibility/"""


def obstacle(cuda: str | None, *, system: Path = SYSTEM) -> str | None:
    """Of a GPU that PyTorch does not see, where it was built for `cuda`, such as 13.2; None where this machine has no NVIDIA GPU."""
    driver = driver_version(system)
    if driver is None and not any(map(is_gpu, (system / "sys/bus/pci/devices").glob("*"))):
        return None
    if cuda is None:
        return "this build of PyTorch knows no CUDA: install from requirements.lock"
    oldest = OLDEST_DRIVER.get(cuda.partition(".")[0], 0)
    if driver is None:
        return f"its driver is not loaded: install NVIDIA's driver{f', {oldest} or newer' if oldest else ''}"
    if int(driver.partition(".")[0]) < oldest:
        return f"its driver {driver} is too old for CUDA {cuda}: install driver {oldest} or newer"
    if not (system / "dev/nvidiactl").exists():
        return "it was not handed to this container: start it with `docker run --gpus all` (NVIDIA Container Toolkit)"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1", "none")
    return "CUDA_VISIBLE_DEVICES hides it: unset that variable" if hidden else "CUDA does not start on it: `nvidia-smi` may say why"


def driver_version(system: Path) -> str | None:
    """As the kernel's module says, also in a container that was given no GPU."""
    try:
        text = (system / "proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", text)
    return found[1] if found else None


def is_gpu(device: Path) -> bool:
    try:
        vendor, kind = ((device / name).read_text(encoding="ascii").strip() for name in ("vendor", "class"))
    except OSError:
        return False
    return vendor == NVIDIA and kind.startswith((DISPLAY, ACCELERATOR))
