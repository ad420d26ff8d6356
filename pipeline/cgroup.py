"""The limits that a container runtime or a cluster sets for a process: its control groups, of version 1 and 2."""

import os
from collections.abc import Iterator
from pathlib import Path

MEMBERSHIP, MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def usable_cpus() -> int:
    """The CPUs that this process may keep busy: those of its affinity, but no more whole ones than its quota allows, and at least one.

    A thread more than the quota allows is stopped for a part of each period, and all others wait for it.
    """
    cpus = len(os.sched_getaffinity(0))
    for folder in folders("cpu"):
        limit = text(folder / "cpu.max").split() or (text(folder / "cpu.cfs_quota_us") + text(folder / "cpu.cfs_period_us")).split()
        if limit and limit[0] not in ("max", "-1"):
            cpus = min(cpus, int(limit[0]) // int(limit[1]))
    return max(cpus, 1)


def killed_for_memory() -> int:
    """The processes of this group that the kernel has killed because the group's memory ran out."""
    for folder in folders("memory"):
        counts = (text(folder / "memory.events") or text(folder / "memory.oom_control")).split()
        if "oom_kill" in counts:
            return int(counts[counts.index("oom_kill") + 1])
    return 0


def folders(controller: str) -> Iterator[Path]:
    """Where the group of this process and those above it may have their files; a container sees its own group as the top."""
    for line in text(MEMBERSHIP).splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            top = MOUNT / controllers
            member = top / group.lstrip("/")
            yield from (folder for folder in (member, *member.parents) if folder.is_relative_to(top))


def text(path: Path) -> str:
    """Empty where there is no such file."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
