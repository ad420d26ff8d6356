"""CPU quotas and memory limits, read from the kernel's files of both cgroup versions."""

import os
from pathlib import Path

import pytest

from pipeline.core import limits

V1 = "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/docker/abc\n"
V2 = "0::/pod/container\n"


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for the kernel's files, for a process that may run on eight CPUs."""
    monkeypatch.setattr(limits, "MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(limits, "MOUNT", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    return tmp_path


def write(groups: Path, membership: str, files: dict[str, str]) -> None:
    (groups / "membership").write_text(membership, encoding="utf-8")
    for name, text in files.items():
        path = groups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("membership", "files", "cpus"),
    [
        ("", {}, 8),
        (V2, {"pod/container/cpu.max": "max 100000\n", "pod/cpu.max": "350000 100000\n"}, 3),
        (V2, {"cpu.max": "50000 100000\n"}, 1),
        (V1, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        (V1, {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        (V1.replace("cpu,cpuacct", "cpuacct,cpu"), {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        (V1, {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "0\n"}, 8),
        (V2, {"cpu.max": "0 100000\n"}, 8),
    ],
)
def test_the_quota_of_the_group_and_of_those_above_it_bounds_the_cpus(
    groups: Path, membership: str, files: dict[str, str], cpus: int
) -> None:
    write(groups, membership, files)
    assert limits.usable_cpus() == cpus


@pytest.mark.parametrize(
    ("membership", "files", "limit"),
    [
        (V2, {"pod/container/memory.max": "max\n", "pod/memory.max": "4096000\n", "memory.max": "8192000\n"}, 4096000),
        (V1, {"memory/docker/abc/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        (V1, {"memory/docker/abc/memory.limit_in_bytes": "1073741824\n"}, 1 << 30),
        (V1, {"cpu/docker/abc/memory.limit_in_bytes": "1073741824\n"}, None),
    ],
)
def test_the_smallest_memory_limit_of_the_group_and_those_above_it_counts(
    groups: Path, membership: str, files: dict[str, str], limit: int | None
) -> None:
    write(groups, membership, files)
    assert limits.memory_limit_bytes() == limit


@pytest.mark.parametrize(
    ("membership", "files", "killed"),
    [
        (V2, {"memory.events": "low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\noom_group_kill 0\n"}, 2),
        (V1, {"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"}, 1),
        (V1, {"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n"}, 0),
    ],
)
def test_processes_that_the_memory_limit_killed_are_counted(groups: Path, membership: str, files: dict[str, str], killed: int) -> None:
    write(groups, membership, files)
    assert limits.num_oom_kills() == killed


def test_the_cpus_that_other_processes_leave_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 4, 5})
    monkeypatch.setattr(limits.OtherProcesses, "seconds", lambda _: 3.0)
    others = limits.OtherProcesses()
    others.begin_s -= 10
    assert others.free_cpus(4) is None
    others.busy_s -= 16
    assert [others.free_cpus(threads) for threads in (1, 2, 4)] == [None, None, 2]
