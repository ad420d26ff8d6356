"""Builds gpu.c, a GPU that executes nothing, and reads its counts in a process that has preloaded it."""

import collections
import ctypes
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("gpu.c")
NAME = "libcuda.so.1"
CAPACITY_BYTES = 80 * 2**30
"""The memory of the GPU, unless `fake_gpu_limit` changes it."""


class Counts(NamedTuple):
    """What the process has asked the GPU to do since `clear`. `to_gpu`, `to_host` and `on_gpu` are copies."""

    kernels: int
    gemms: int
    convolutions: int
    to_gpu: int
    to_host: int
    on_gpu: int
    memsets: int
    waits: int
    allocations: int
    pinned_allocations: int

    @property
    def launches(self) -> int:
        """Return the number of operations that the host has put into streams. Each takes the host some 5 microseconds."""
        return sum(self[:7])


def headers() -> Path | None:
    """Return the folder of CUDA's headers that Triton brings; None without Triton."""
    triton = find_spec("triton")
    folder = Path(*triton.submodule_search_locations) / "backends/nvidia/include" if triton and triton.submodule_search_locations else None
    return folder if folder and folder.is_dir() else None


def obstacle() -> str:
    """Return the reason why the library cannot be built here; "" if it can."""
    if shutil.which("gcc") is None:
        return "there is no gcc, which compiles tests/gpu/fake/gpu.c"
    return "" if headers() else "Triton, which brings CUDA's headers, is not installed"


def build(folder: Path) -> Path:
    """Compile the library into `folder`, and return its path, for LD_PRELOAD. pynvml finds it in the folder by its second name."""
    library = folder / NAME
    options = ["-std=gnu11", "-w", "-O1", "-shared", "-fPIC", f"-Wl,-soname,{NAME}", "-I", str(headers())]
    subprocess.run(["gcc", *options, "-o", str(library), str(SOURCE), "-ldl"], check=True)
    (folder / "libnvidia-ml.so.1").symlink_to(NAME)
    return library


def gpu() -> ctypes.CDLL:
    """Return the preloaded library. Raises AttributeError if there is none."""
    program = ctypes.CDLL(None)
    program.fake_gpu_launched.restype = ctypes.c_char_p
    program.fake_gpu_launched.argtypes = [ctypes.c_long]
    program.fake_gpu_num_launched.restype = ctypes.c_long
    program.fake_gpu_limit.argtypes = [ctypes.c_size_t]
    program.fake_gpu_used.restype = ctypes.c_size_t
    return program


def is_preloaded() -> bool:
    """Return True if this process runs with the library of the GPU that executes nothing."""
    return hasattr(ctypes.CDLL(None), "fake_gpu_clear")


def clear() -> None:
    gpu().fake_gpu_clear()


def counts() -> Counts:
    found = (ctypes.c_long * len(Counts._fields))()
    gpu().fake_gpu_read(found)
    return Counts(*found)


def launched() -> collections.Counter[str]:
    """Return how often each kernel was launched since `clear`, by its mangled name."""
    program = gpu()
    return collections.Counter(program.fake_gpu_launched(at).decode() for at in range(program.fake_gpu_num_launched()))
