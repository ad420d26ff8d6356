"""Finds what this process may use: CPUs and memory under the limits of a container, and the memory allocator of the C library."""

import ctypes
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

QUOTA_AND_PERIOD, OOM_KILLS = re.compile(r"([1-9]\d*)\s+([1-9]\d*)\s*"), re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
UNLIMITED = 2**60
TOLERANCE = 0.5
"""Tolerated load by others, in CPUs."""
MEMBERSHIP, MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use: those in its CPU affinity, or the cgroup's CPU quota if that is smaller.

    The quota is rounded down; the result is at least 1. More threads than this would be slower. They use up the quota before a period ends,
    and the kernel then pauses them until the next period. Every parallel operation waits for the paused threads.
    """
    cpus = len(os.sched_getaffinity(0))
    for folder in folders("cpu"):
        version_1 = read_or_empty(folder / "cpu.cfs_quota_us") + read_or_empty(folder / "cpu.cfs_period_us")
        if match := QUOTA_AND_PERIOD.fullmatch(read_or_empty(folder / "cpu.max") or version_1):  # no match without a quota: "max ..." or -1
            cpus = min(cpus, int(match[1]) // int(match[2]))
    return max(cpus, 1)


class OtherProcesses:
    """Measures, since it was made, how many of the CPUs that this process may use are kept busy by processes other than it and its children."""

    def __init__(self) -> None:
        self.begin_s, self.busy_s = time.monotonic(), self.seconds()

    @staticmethod
    def seconds() -> float:
        import psutil  # late: `container` imports this module without packages while an image is built

        usable, times = os.sched_getaffinity(0), psutil.cpu_times(percpu=True)
        busy_s = sum(sum(each[:8]) - each.idle - each.iowait for cpu, each in enumerate(times) if cpu in usable)
        own = psutil.Process()
        for process in (own, *own.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # a child has ended meanwhile
                busy_s -= sum(process.cpu_times()[:4])  # user and system, and those of its children that have ended
        return busy_s

    def free_cpus(self, threads: int) -> int | None:
        """Return how many CPUs the other processes leave free, at least 1, or None if these are enough for this number of threads."""
        left = len(os.sched_getaffinity(0)) - (self.seconds() - self.busy_s) / max(time.monotonic() - self.begin_s, 1e-9)
        return max(1, int(left)) if threads > max(1, left + TOLERANCE) else None


def memory_limit_bytes() -> int | None:
    """Return the memory limit of this process's cgroup, or of a parent cgroup if that is smaller; None if there is no limit."""
    limits = (
        read_or_empty(folder / "memory.max") or read_or_empty(folder / "memory.limit_in_bytes") for folder in folders("memory")
    )  # v1 shows no limit as the largest multiple of a page
    return min((int(limit) for limit in limits if limit.strip().isdigit() and int(limit) < UNLIMITED), default=None)


def num_oom_kills() -> int:
    """Return how many processes the OOM killer has killed in the cgroup of this process; 0 if the number is unknown."""
    for folder in folders("memory"):
        if match := OOM_KILLS.search(read_or_empty(folder / "memory.events") or read_or_empty(folder / "memory.oom_control")):
            return int(match[1])
    return 0


def folders(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's cgroup and of its parent cgroups. `controller` is "cpu" or "memory".

    A folder may not exist. In a container, the path of the cgroup may be that on the host, but the container sees only its own cgroup, as
    the root. With cgroup v1, several controllers may share one folder (`cpuacct,cpu`). A symbolic link named after each controller then
    points to it.
    """
    for line in read_or_empty(MEMBERSHIP).splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            top = MOUNT / controller if controllers else MOUNT
            member = top / group.lstrip("/")
            yield from (folder for folder in (member, *member.parents) if folder.is_relative_to(top))


def read_or_empty(path: Path) -> str:
    """Return the text of a file, or an empty string if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameter numbers of `mallopt`, from glibc's malloc.h."""


def keep_freed_memory() -> None:
    """Configure glibc's malloc to keep freed memory for the next step or chunk of images. With another C library, do nothing.

    By default, glibc returns large blocks to the kernel, which must fill them with zeros when they are allocated again. On a CPU, this
    takes a tenth of the step time of resnet or MobileNet, and a fifth of the time in which `prepare` decodes images of 256x256 pixels. On a
    GPU, PyTorch's caching allocator keeps freed memory anyway.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        any(mallopt(M_MMAP_THRESHOLD, size) for size in (2**30, 2**25))  # glibc before 2.35 accepts at most 2**25
