"""The memory that a training takes: that of the GPU, or the resident memory of this process on a CPU. In bytes."""

import resource
import sys
from pathlib import Path

import psutil
import torch

from pipeline.runtime import cgroup

RESET_PEAK = "5"
"""Written to `/proc/self/clear_refs`, it makes the kernel measure the peak of the resident memory anew (man 5 proc)."""


def reset_peak(device: torch.device) -> None:
    """Begin to measure the peak anew. On a CPU whose kernel does not support this, the peak stays that since the start of the process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        Path("/proc/self/clear_refs").write_text(RESET_PEAK, encoding="ascii")
    except OSError:
        return


def peak_bytes(device: torch.device) -> int:
    """Return the peak since the last `reset_peak`: of the tensors on the GPU, or of the resident memory of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peaks = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return peaks[0] if peaks else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def current_bytes(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else int(psutil.Process().memory_info().rss)


def available_bytes() -> int:
    """Return how much memory of this machine a new process can take: what is free, or what the limit of a cgroup leaves if that is less."""
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
