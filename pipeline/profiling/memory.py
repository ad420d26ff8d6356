"""Measures the memory of a training in bytes: that of its tensors on a GPU, or the resident memory of this process on a CPU."""

import resource
import sys
from pathlib import Path

import psutil
import torch

from pipeline.runtime import cgroup

RESET_PEAK = "5"
"""The text that resets the peak of the resident memory when it is written to `/proc/self/clear_refs` (man 5 proc)."""


def reset_peak(device: torch.device) -> None:
    """Reset the peak that `peak_bytes` returns. If the kernel cannot reset it on a CPU, it stays the peak since the start of the process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        Path("/proc/self/clear_refs").write_text(RESET_PEAK, encoding="ascii")
    except OSError:
        return


def peak_bytes(device: torch.device) -> int:
    """Return the peak since the last `reset_peak`: that of the tensors on the GPU, or of this process's resident memory on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peaks = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return peaks[0] if peaks else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def available_bytes() -> int:
    """Return how much memory a new process can use: the free memory of the machine, or what the limit of a cgroup leaves, if that is less."""
    return min([psutil.virtual_memory().available, *map(left_bytes, cgroup.folders("memory"))])


def left_bytes(folder: Path) -> int:
    """Return how much memory a cgroup may still take, given its `folder`. Cached files count as free, because the kernel drops them first."""
    for limit, used, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit_bytes, used_bytes = cgroup.read_or_empty(folder / limit).strip(), cgroup.read_or_empty(folder / used).strip()
        if limit_bytes.isdigit() and used_bytes.isdigit():
            statistics = dict(line.split() for line in cgroup.read_or_empty(folder / "memory.stat").splitlines())
            return int(limit_bytes) - int(used_bytes) + int(statistics.get(cached, 0))
    return sys.maxsize
