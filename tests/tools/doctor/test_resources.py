"""CPUs, memory, disks and file systems: full, small and limited."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.core import limits
from pipeline.runs.utilization import Gpu
from pipeline.tools.doctor import resources
from pipeline.tools.doctor.finding import Context

MakeContext = Callable[..., Context]
GIB = 2**30
H200 = Gpu("NVIDIA H200", 140 * GIB, 139 * GIB, (9, 0))


def statvfs(**values: int) -> Callable[[Path], os.statvfs_result]:
    names = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail", "f_flag", "f_namemax")
    filled = {"f_frsize": 4096, "f_blocks": 10**9, "f_bavail": 10**9, "f_files": 10**6, "f_favail": 10**6, **values}
    return lambda _: os.statvfs_result([filled.get(name, 0) for name in names])


def test_shared_memory_that_is_small_full_or_not_needed(make_context: MakeContext) -> None:
    small, full = statvfs(f_blocks=2**14, f_bavail=2**14), statvfs(f_blocks=2**19, f_bavail=2**17)
    context = make_context(H200, H200, PIPELINE_PROCESSES="auto")
    finding = resources.shared_memory(context, small)
    assert finding.text == "64 MiB of 64 MiB free in /dev/shm; NCCL needs 1 GiB for several processes on GPUs"
    assert (finding.status, "--shm-size 1g" in finding.remedy) == ("warning", True)
    finding = resources.shared_memory(context, full)
    assert (finding.status, "killed processes" in finding.remedy) == ("warning", True)
    assert resources.shared_memory(context, statvfs()).status == "ok"
    for fewer in (make_context(H200, H200), make_context(H200, PIPELINE_PROCESSES="2"), make_context(H200, H200, PIPELINE_DEVICE="cpu")):
        assert resources.shared_memory(fewer, small).status == "ok"
    assert resources.shared_memory(make_context(H200, H200, PIPELINE_PROCESSES="2"), small).status == "warning"


def test_free_space_decides_the_status(make_context: MakeContext) -> None:
    for free_mib, status in {10: "problem", 500: "warning", 50_000: "ok"}.items():
        finding = resources.disk(make_context(), statvfs(f_bavail=free_mib * 256))
        assert (finding.status, bool(finding.remedy)) == (status, status != "ok")
        assert status == "ok" or f"{free_mib} MiB free in {make_context().top}" in finding.text


def test_settings_that_dvc_cannot_read_do_not_hide_a_full_disk(make_context: MakeContext, tmp_path: Path) -> None:
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text("[core\n", encoding="utf-8")
    assert resources.disk(make_context(), statvfs(f_bavail=0)).status == "problem"


def test_the_cache_of_dvc_on_another_disk_is_examined_too(make_context: MakeContext, tmp_path: Path) -> None:
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text("[cache]\n    dir = /dev/shm/cache\n", encoding="utf-8")
    assert resources.disk(make_context()).text.endswith("/dev/shm")  # noqa: S108  # nothing is written there


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "groups"
    folder.mkdir()
    monkeypatch.setattr(limits, "MEMBERSHIP", folder / "membership")
    monkeypatch.setattr(limits, "MOUNT", folder)
    (folder / "membership").write_text("0::/\n", encoding="utf-8")
    return folder


def test_a_memory_limit_and_processes_that_it_killed(make_context: MakeContext, groups: Path) -> None:
    (groups / "memory.max").write_text(f"{GIB}\n", encoding="utf-8")
    finding = resources.memory(make_context())
    assert (finding.status, finding.text.partition(";")[0]) == ("warning", "1.0 GiB of 1.0 GiB free (limit of the cgroup)")
    assert "docker run --memory" in finding.remedy
    (groups / "memory.max").write_text("max\n", encoding="utf-8")
    (groups / "memory.events").write_text("oom 1\noom_kill 2\n", encoding="utf-8")
    finding = resources.memory(make_context())
    assert (finding.status, "2 processes of this cgroup were killed" in finding.text) == ("warning", True)


def test_a_cpu_quota_and_more_threads_than_it_allows(make_context: MakeContext, groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(limits.OtherProcesses, "free_cpus", lambda *_: 5)
    assert (resources.cpus(make_context()).status, "`export PIPELINE_THREADS=5`" in resources.cpus(make_context()).remedy) == (
        "warning",
        True,
    )
    monkeypatch.setattr(limits.OtherProcesses, "free_cpus", lambda *_: None)
    assert (resources.cpus(make_context()).status, resources.cpus(make_context()).text) == ("ok", "8 of 8 usable")
    (groups / "cpu.max").write_text("300000 100000\n", encoding="utf-8")
    assert resources.cpus(make_context()).text == "3 of 8 usable, by CPU affinity or the quota of the cgroup"
    finding = resources.cpus(make_context(PIPELINE_THREADS="4"))
    assert (finding.status, finding.remedy) == ("warning", "`export PIPELINE_THREADS=3`")


def test_a_file_system_without_locks_is_a_problem(make_context: MakeContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resources.file_locks(make_context()).status == "ok"
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"

    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)
    finding = resources.file_locks(make_context())
    assert (finding.status, "does not support file locks" in finding.text) == ("problem", True)
