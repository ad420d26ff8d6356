"""Checks CPUs, memory, disks and file systems."""

import errno
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pipeline.core import limits
from pipeline.tools.doctor.checkout import WRITTEN, dvc_setting
from pipeline.tools.doctor.finding import Context, Finding, ok, problem, warning

MIB, GIB = 2**20, 2**30
NCCL_BYTES = GIB
"""The size of /dev/shm that NVIDIA recommends (docs/clusters.md)."""
LITTLE_MEMORY = 2 * GIB
OTHERS_S = 0.2
"""How long the use of the CPUs by other processes is measured."""
LEAST_DISK, LITTLE_DISK = 64 * MIB, 2 * GIB

Statvfs = Callable[[Path], os.statvfs_result]


def shared_memory(context: Context, statvfs: Statvfs = os.statvfs) -> Finding:
    """Compare the free space of /dev/shm with what NCCL needs. Several processes on GPUs exchange gradients by NCCL."""
    try:
        status = statvfs(context.system / "dev/shm")
    except OSError as error:
        return warning(f"no shared memory in /dev ({error.strerror})", "`docker run --shm-size 1g`, if this is a container")
    size, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    text = f"{in_units(free)} of {in_units(size)} free in /dev/shm"
    if not uses_nccl(context):
        return ok(f"{text}; only several processes on GPUs use it")
    if size < NCCL_BYTES:
        remedy = "`docker run --shm-size 1g` for a container, `mount -o remount,size=1g /dev/shm` for a machine"
        return warning(f"{text}; NCCL needs 1 GiB for several processes on GPUs", remedy)
    if free < NCCL_BYTES:
        return warning(f"{text}; NCCL needs 1 GiB", "`ls /dev/shm`, and remove what killed processes left there")
    return ok(text)


def uses_nccl(context: Context) -> bool:
    """Return True if a training in this environment has several processes on the GPUs of this machine."""
    environment = context.environment
    on_gpus = environment.device in ("auto", "cuda") and len(context.gpus.devices) > 1
    return on_gpus and (environment.processes == "auto" or max(environment.processes, environment.local_world_size) > 1)


def cpus(context: Context) -> Finding:
    """Compare the threads of a training with the CPUs that the CPU affinity and the cgroup's quota allow."""
    usable, all_cpus = limits.usable_cpus(), os.cpu_count() or 1
    text = f"{usable} of {all_cpus} usable" + ("" if usable == all_cpus else ", by CPU affinity or the quota of the cgroup")
    threads = context.environment.threads
    if threads and threads * context.environment.local_world_size > usable:
        text += f"; PIPELINE_THREADS={threads} starts more threads than that, which is slower"
        return warning(text, f"`export PIPELINE_THREADS={max(1, usable // context.environment.local_world_size)}`")
    others = limits.OtherProcesses()
    time.sleep(OTHERS_S)
    if not context.gpus.devices and (free := others.free_cpus(threads or usable)):
        text += f"; other processes use them, and the threads of a training wait for the slowest, {free} of them are faster"
        return warning(text, f"`export PIPELINE_THREADS={free}`, or wait until the others have ended")
    return ok(text)


def memory(_context: Context) -> Finding:
    """Check the free memory of the machine, or of the cgroup if its limit is smaller, and whether the OOM killer has killed processes."""
    import psutil

    machine, limit = psutil.virtual_memory(), limits.memory_limit_bytes()
    is_limited = limit is not None and limit < machine.total
    total = min(machine.total, limit or machine.total)
    text = f"{in_units(min(total, machine.available))} of {in_units(total)} free" + (" (limit of the cgroup)" if is_limited else "")
    remedy = (
        "`docker run --memory`, or the memory limit of the job, raises it"
        if is_limited
        else "`ps aux --sort -rss | head` names the processes that use it"
    )
    if min(total, machine.available) < LITTLE_MEMORY:
        return warning(f"{text}; a training with DVC and tracking can need 2 GiB", remedy)
    if killed := limits.num_oom_kills():
        return warning(f"{text}; {killed} processes of this cgroup were killed because its memory was used up", remedy)
    return ok(text)


def disk(context: Context, statvfs: Statvfs = os.statvfs) -> Finding:
    """Check the free space of the file systems that a training writes to. The status is `problem` if no checkpoint fits on one."""
    free = {path: status.f_bavail * status.f_frsize for path, status in file_systems(context, statvfs)}
    text, least = ", ".join(f"{in_units(count)} free in {path}" for path, count in free.items()), min(free.values())
    if least >= LITTLE_DISK:
        return ok(text)
    remedy = "remove files, or `dvc gc --workspace` (results of other commits in DVC's cache)"
    return problem(text, remedy) if least < LEAST_DISK else warning(text, remedy)


def file_systems(context: Context, statvfs: Statvfs) -> Iterator[tuple[Path, os.statvfs_result]]:
    """Yield a folder of each file system to which a training writes: the checkout, its folders, the journals and work folders, and
    DVC's cache.
    """
    written = [context.top / name for name in WRITTEN]
    seen = set()
    cache = context.top / ".dvc" / Path(dvc_setting(context.top, "cache", "dir") or "cache").expanduser()  # relative to the settings
    for path in (*written, context.environment.root / ".pipeline", cache):
        folder = existing(path.resolve())
        if (device := folder.stat().st_dev) not in seen:
            seen.add(device)
            yield folder, statvfs(folder)


def existing(path: Path) -> Path:
    """Return the path, or its nearest parent that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def file_locks(context: Context) -> Finding:
    """Lock a temporary file in the checkout by flock. Without file locks, two trainings could write the same files at the same time."""
    folder = existing((context.environment.root / ".pipeline").resolve())
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT):  # other checks report these errors
            return warning(f"not examined, because {folder} cannot be written ({error.strerror})")
        text = f"{folder}: the file system does not support file locks ({error.strerror})"
        return problem(text, "move the checkout to a local disk, or mount its file system with locks (Lustre: `-o flock`)")
    return ok(f"flock works in {folder}")


def in_units(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= GIB else f"{size_bytes / MIB:.0f} MiB"
