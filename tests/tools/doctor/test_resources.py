"""CPUs, memory, disks and file systems: full, small and limited ones are real where root can mount them."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.core import limits
from pipeline.tools.doctor import resources
from pipeline.tools.doctor.finding import Context, Finding, Gpu
from tests.imports import TOP

MakeContext = Callable[..., Context]
GIB = 2**30
H200 = Gpu("NVIDIA H200", 140 * GIB, 139 * GIB, (9, 0))
IN_NAMESPACE = """
import json, sys
from pathlib import Path
from pipeline.tools.doctor import resources
from pipeline.tools.doctor.finding import Context
from pipeline.tools.doctor.finding import Gpu, Gpus
from pipeline.core.environment import Environment
top = Path(sys.argv[1])
context = Context(Environment.model_validate({"PIPELINE_DEVICE": "auto", "DVC_ROOT": top, "PIPELINE_PROCESSES": sys.argv[2]}), top)
vars(context)["gpus"] = Gpus("590.10", "13.2", [Gpu("GPU", 1, 1, (9, 0))] * 2)
checks = (resources.shared_memory, resources.disk, resources.inodes, resources.nodes)
print(json.dumps([vars(check(context)) for check in checks]))
"""


def can_mount() -> bool:
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0


def with_mounts(top: Path, script: str, processes: str) -> dict[str, Finding]:
    """Run checks on the checkout `top` in a mount namespace, after the shell commands of `script`."""
    command = f'{script} && exec "$0" -c "$1" "$2" "$3"'
    arguments = ["unshare", "--mount", "sh", "-ec", command, sys.executable, IN_NAMESPACE, str(top), processes]
    done = subprocess.run(arguments, cwd=TOP, capture_output=True, text=True, check=True)
    return {values["name"]: Finding(**values) for values in json.loads(done.stdout)}


@pytest.mark.skipif(not can_mount(), reason="only root can mount a file system")
def test_a_full_disk_without_inodes_and_small_shared_memory(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    script = f"mount -t tmpfs -o size=1m,nr_inodes=8 tmpfs {tmp_path / 'models'} && mount -t tmpfs -o size=64m tmpfs /dev/shm"
    found = with_mounts(tmp_path, script, processes="2")
    assert (found["disk"].status, found["inodes"].status, found["shared memory"].status) == ("problem", "problem", "warning")
    assert f"1 MiB free in {tmp_path / 'models'}" in found["disk"].text
    assert f"7 free in {tmp_path / 'models'}" in found["inodes"].text
    assert found["shared memory"].text == "64 MiB of 64 MiB free in /dev/shm; NCCL needs 1 GiB for several processes on GPUs"
    assert "--shm-size 1g" in found["shared memory"].remedy


@pytest.mark.skipif(not can_mount(), reason="only root can mount a file system")
def test_shared_memory_that_is_full_or_not_needed(tmp_path: Path) -> None:
    fill = "mount -t tmpfs -o size=2g tmpfs /dev/shm && fallocate -l 1500m /dev/shm/nccl-left"
    finding = with_mounts(tmp_path, fill, processes="auto")["shared memory"]
    assert (finding.status, "killed processes" in finding.remedy) == ("warning", True)
    assert with_mounts(tmp_path, fill, processes="1")["shared memory"].status == "ok"


def statvfs(**values: int) -> Callable[[Path], os.statvfs_result]:
    names = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail", "f_flag", "f_namemax")
    filled = {"f_frsize": 4096, "f_blocks": 10**9, "f_bavail": 10**9, "f_files": 10**6, "f_favail": 10**6, **values}
    return lambda _: os.statvfs_result([filled.get(name, 0) for name in names])


@pytest.mark.parametrize(("free_mib", "status"), [(10, "problem"), (500, "warning"), (50_000, "ok")])
def test_free_space_decides_the_status(make_context: MakeContext, free_mib: int, status: str) -> None:
    finding = resources.disk(make_context(), statvfs(f_bavail=free_mib * 256))
    assert (finding.status, bool(finding.remedy)) == (status, status != "ok")


@pytest.mark.parametrize(("free", "status"), [(3, "problem"), (5000, "warning"), (10**6, "ok")])
def test_free_inodes_decide_the_status(make_context: MakeContext, free: int, status: str) -> None:
    assert resources.inodes(make_context(), statvfs(f_favail=free)).status == status
    assert resources.inodes(make_context(), statvfs(f_files=0, f_favail=0)).text == "not limited"


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
    assert (resources.cpus(make_context()).status, resources.cpus(make_context()).text) == ("ok", "8 of 8 usable")
    (groups / "cpu.max").write_text("300000 100000\n", encoding="utf-8")
    assert resources.cpus(make_context()).text == "3 of 8 usable, by CPU affinity or the quota of the cgroup"
    finding = resources.cpus(make_context(PIPELINE_THREADS="4"))
    assert (finding.status, finding.remedy) == ("warning", "`export PIPELINE_THREADS=3`")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_a_problem(make_context: MakeContext, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    assert resources.file_locks(make_context()).status == "ok"

    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    finding = resources.file_locks(make_context())
    assert (finding.status, "does not support file locks" in finding.text) == ("problem", True)


def test_file_locks_are_not_examined_where_nothing_can_be_written(make_context: MakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    finding = resources.file_locks(make_context())
    assert (finding.status, finding.text.startswith("not examined")) == ("warning", True)


def test_a_machine_without_shared_memory(make_context: MakeContext) -> None:
    finding = resources.shared_memory(make_context())
    assert (finding.status, finding.text) == ("warning", "no shared memory in /dev (No such file or directory)")


def test_the_file_locks_leave_nothing_behind(make_context: MakeContext, tmp_path: Path) -> None:
    resources.file_locks(make_context())
    assert list(tmp_path.iterdir()) == []


def test_several_machines_need_a_shared_file_system(make_context: MakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    several = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    monkeypatch.setattr(resources, "file_system_type", lambda _: "ext4")
    assert resources.nodes(make_context()).text == "one machine"
    finding = resources.nodes(make_context(**several))
    assert (finding.status, "local file system (ext4)" in finding.text) == ("warning", True)
    monkeypatch.setattr(resources, "file_system_type", lambda _: "nfs4")
    assert resources.nodes(make_context(**several)).status == "ok"


def test_the_type_of_a_file_system_is_that_of_its_mount() -> None:
    assert resources.file_system_type(Path("/proc/self")) == "proc"
