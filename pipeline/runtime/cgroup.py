"""Reads the limits that a container runtime or a cluster sets for a process: its control groups, of version 1 and 2."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

QUOTA_AND_PERIOD, KILLED = re.compile(r"([1-9]\d*)\s+([1-9]\d*)\s*"), re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
MEMBERSHIP, MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def usable_cpus() -> int:
    """Returns how many CPUs this process may keep busy: those of its affinity, but no more whole ones than its quota allows, and at least one.

    A thread more than the quota allows is stopped for a part of each period, and all others wait for it.
    """
    cpus = len(os.sched_getaffinity(0))
    for folder in folders("cpu"):
        version_1 = read_or_empty(folder / "cpu.cfs_quota_us") + read_or_empty(folder / "cpu.cfs_period_us")
        if found := QUOTA_AND_PERIOD.fullmatch(read_or_empty(folder / "cpu.max") or version_1):  # not "max 100000", "-1" or half a file
            cpus = min(cpus, int(found[1]) // int(found[2]))
    return max(cpus, 1)


def killed_for_memory() -> int:
    """Returns how many processes of this group the kernel has killed because the group's memory ran out."""
    for folder in folders("memory"):
        if found := KILLED.search(read_or_empty(folder / "memory.events") or read_or_empty(folder / "memory.oom_control")):
            return int(found[1])
    return 0


def folders(controller: str) -> Iterator[Path]:
    """Yields the folders that the group of this process and those above it may have; a container sees its own group as the top.

    Version 1 mounts controllers together in an order of its own (`cpuacct,cpu`), and has a link with the name of each.
    """
    for line in read_or_empty(MEMBERSHIP).splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            top = MOUNT / controller if controllers else MOUNT
            member = top / group.lstrip("/")
            yield from (folder for folder in (member, *member.parents) if folder.is_relative_to(top))


def read_or_empty(path: Path) -> str:
    """Returns the text of a file; nothing where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
