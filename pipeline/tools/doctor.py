"""`doctor`: the device, memory and disk of this machine, the fit of NVIDIA driver and kernels to torch, the tracking store, and the faults of this checkout.

What other tools say themselves is left to them: docs/doctor.md names them.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from pipeline.core import limits
from pipeline.core.environment import Environment, Paths
from pipeline.core.refusal import counted, listed
from pipeline.core.untrusted import reason, shown
from pipeline.inference import gpu_diagnostics
from pipeline.inference.gpu_diagnostics import SYSTEM, dot, major
from pipeline.runs.mlflow.address import Address
from pipeline.runs.mlflow.store import Store
from pipeline.runs.utilization import read_gpus

Status = Literal["ok", "warning", "problem"]
MIB, GIB = 2**20, 2**30
LITTLE_MEMORY, LEAST_DISK, LITTLE_DISK, MOST_NAMED = 2 * GIB, 64 * MIB, 2 * GIB, 4
WRITTEN = (".", ".dvc/cache", ".dvc/tmp", ".pipeline/journal", ".pipeline/work", "data", "models", "metrics", "plots", "predictions")
"""Folders of a checkout to which DVC and a training write, if they exist."""
CUDA_OF_TORCH = re.compile(r"^cuda\b.*= *'([\d.]+)'", re.MULTILINE)
ENTRY = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[.*?\])?==([^\s;]+)(?:\s*;\s*([^\\\n]+))?", re.MULTILINE)
ONLY_ON_GPUS = ("nvidia-", "cuda-", "triton")
INSTALL = "`rm -f .venv/.locked; make setup`, then `source .venv/bin/activate`, or `make image` for the container"


class Finding(NamedTuple):
    """Holds what a check has found. The status is `problem` if a training would fail.

    `remedy` says what to do, with commands in backticks; "" if there is nothing to do.
    """

    status: Status
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.text}: {self.remedy}" if self.remedy else self.text


ok, warning, problem = partial(Finding, "ok"), partial(Finding, "warning"), partial(Finding, "problem")


def run(complete: bool) -> int:
    """Print the problems and warnings, or all findings if `complete` is True, and a line. Return 1 if a training would fail, else 0."""
    found = examine(Environment.read())
    for name, (status, text, remedy) in found.items():
        if complete or status != "ok":
            print(f"{status:8} {name:10} {text}" + (f"\n{'':19} → {remedy}" if remedy else ""))
    problems, warnings, good = ([each.status for each in found.values()].count(status) for status in ("problem", "warning", "ok"))
    end = "a training would fail" if problems else "a training can run (`python -m pipeline check` examines params.yaml)"
    print(f"doctor: {counted(problems, 'problem')}, {counted(warnings, 'warning')}, {good} ok: {end}")
    return int(problems > 0)


def lock(_environment: Environment) -> Finding:
    """Compare the installed packages with requirements.lock, on which every stage depends. The status is `problem` if a package is missing,
    unless only GPUs need it.
    """
    from packaging.markers import Marker

    path = Paths().lock
    if not path.is_file():
        return problem(f"{path} is missing, and every stage depends on it", f"`git checkout {path}`")
    entries = ENTRY.findall(path.read_text(encoding="utf-8"))
    wanted = {name: version for name, version, marker in entries if not marker or Marker(marker.strip()).evaluate()}
    missing, different = list[str](), list[str]()
    for name, version in wanted.items():
        try:
            if (installed := metadata.version(name)) != version:
                different.append(f"{name} {installed} (not {version})")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if parts := [f"{listed(names, MOST_NAMED)} {what}" for names, what in ((missing, "missing"), (different, "other versions")) if names]:
        status: Status = "problem" if [name for name in missing if not name.startswith(ONLY_ON_GPUS)] else "warning"
        return Finding(status, f"of {len(wanted)} packages of {path}: {'; '.join(parts)}", INSTALL)
    return ok(f"all {len(wanted)} packages of {path} are installed in its versions")


def cuda_of_torch() -> str | None:
    """Return the CUDA version with which torch was built, such as "13.2", without importing it; None if it was built without, or is not installed."""
    found = find_spec("torch")
    path = Path(found.origin).with_name("version.py") if found and found.origin else Path()
    match = CUDA_OF_TORCH.search(path.read_text(encoding="utf-8")) if path.is_file() else None
    return match[1] if match else None


def driver(environment: Environment) -> Finding:
    """Compare the NVIDIA driver with the CUDA version of torch. The status is `problem` only if PIPELINE_DEVICE demands a GPU."""
    needed, found, device = cuda_of_torch(), read_gpus(SYSTEM), environment.device
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in gpu_diagnostics.HIDING
    if found.devices and found.cuda and needed and int(major(found.cuda)) >= int(major(needed)) and not hidden:
        return ok(f"NVIDIA driver {found.driver} (up to CUDA {found.cuda}), torch is built for CUDA {needed}")
    obstacle = gpu_diagnostics.obstacle(needed, system=SYSTEM, driver=found.driver)
    if not obstacle and not device.startswith("cuda"):
        return ok("no NVIDIA GPU: training runs on the CPU")
    text, _, remedy = (obstacle or "this machine has no NVIDIA GPU: `unset PIPELINE_DEVICE`").partition(": ")
    return Finding("problem" if device.startswith("cuda") else "ok" if device == "cpu" else "warning", text, remedy)


def gpus(environment: Environment) -> Finding:
    """List the GPUs with memory and compute capability. The status is `problem` if torch has kernels for none, and PIPELINE_DEVICE demands one."""
    devices, device, cuda = read_gpus(SYSTEM).devices, environment.device, cuda_of_torch()
    described = []
    for index, gpu in enumerate(devices):
        free = f"{in_units(gpu.free_bytes)} of {in_units(gpu.memory_bytes)} free" if gpu.memory_bytes else "memory of the CPU"
        described.append(f"{index}: {gpu.name}, {free}, compute capability {dot(gpu.capability)}")
    text, oldest = "; ".join(described) or "none", gpu_diagnostics.oldest_capability(cuda)
    lacking = [str(index) for index, gpu in enumerate(devices) if gpu.capability < oldest]
    if not lacking or device == "cpu":
        return ok(text)
    text += f". torch's CUDA {cuda} needs compute capability {dot(oldest)}, which GPU {', '.join(lacking)} lacks"
    remedy = f"choose another GPU by CUDA_VISIBLE_DEVICES, or another build of torch ({gpu_diagnostics.REBUILD})"
    return Finding("problem" if device.startswith("cuda") and len(lacking) == len(devices) else "warning", text, remedy)


def memory(_environment: Environment) -> Finding:
    """Check the free memory of the machine, or of the cgroup if its limit is smaller."""
    import psutil

    machine = psutil.virtual_memory()
    total = min(machine.total, limits.memory_limit_bytes() or machine.total)
    free = min(total, machine.available)
    text = f"{in_units(free)} of {in_units(total)} free"
    if free >= LITTLE_MEMORY:
        return ok(text)
    remedy = "`ps aux --sort -rss | head` names what uses it; in a container, raise `docker run --memory`"
    return warning(f"{text}; a training with DVC and tracking can need 2 GiB", remedy)


def written() -> list[Path]:
    """Return the folders of this checkout to which DVC and a training write, as far as they exist."""
    return [path.resolve() for name in WRITTEN if (path := Path(name)).is_dir()]


def disk(_environment: Environment) -> Finding:
    """Check the free space where a training writes. The status is `problem` if no checkpoint fits."""
    free, folder = min((shutil.disk_usage(folder).free, folder) for folder in written())
    text, remedy = f"{in_units(free)} free in {folder}", "remove files, or `dvc gc --workspace` (results of other commits in DVC's cache)"
    return ok(text) if free >= LITTLE_DISK else Finding("problem" if free < LEAST_DISK else "warning", text, remedy)


def ownership(_environment: Environment) -> Finding:
    """Check that this user can write to the folders that a training writes to."""
    uid = os.geteuid()
    locked = [path for path in written() if not os.access(path, os.W_OK | os.X_OK, effective_ids=True)]
    if not locked:
        return ok(f"uid {uid} can write the checkout")
    owner = locked[0].stat()
    remedy = f"run as its owner (`docker run --user {owner.st_uid}:{owner.st_gid}`), or `sudo chown -R {uid} .`"
    return problem(f"uid {uid} cannot write {listed([*map(str, locked)], MOST_NAMED)}, which belongs to uid {owner.st_uid}", remedy)


def in_units(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= GIB else f"{size_bytes / MIB:.0f} MiB"


def tracking(environment: Environment) -> Finding:
    """Ask the MLflow server or database for an experiment, by MLflow's client. No training depends on it."""
    if not environment.tracking:
        return ok("off (PIPELINE_TRACKING)")
    store = Store(environment)
    scheme, _, path = store.address.for_mlflow.partition(":///")
    if scheme.startswith("sqlite") and path and not Path(path.partition("?")[0]).exists():  # else MLflow would create it
        return ok(f"{path.partition('?')[0]}, which the first run will make")
    try:
        store.client.search_experiments(max_results=1)
    except Exception as error:  # whatever MLflow raises
        text = f"{store.address.shown} cannot be used ({shown(reason(error), 300)}); a training runs nevertheless"
        return warning(text, "see the log of the server and docs/mlflow-server.md; then `python -m pipeline sync` sends the runs")
    return ok(f"{store.address.shown} answers")


CHECKS: Mapping[str, Callable[[Environment], Finding]] = {
    check.__name__: check for check in (lock, driver, gpus, memory, disk, ownership, tracking)
}
"""The checks by name, in the order of the output."""
FOR_TRAINING = ("lock", "gpus", "disk", "ownership")
"""The checks that the command `check` runs before a training. It does not cover them itself, and none needs a server."""


def examine(environment: Environment, names: Iterable[str] = CHECKS) -> dict[str, Finding]:
    """Return the findings of the checks called `names`, without secrets. A check that raises an exception gives a warning."""
    redacted = Address.of(environment).redacted
    found = {}
    for name in names:
        try:
            status, text, remedy = CHECKS[name](environment)
        except Exception as error:  # one check must not hide the others
            status, text, remedy = warning(f"could not be examined ({type(error).__name__}: {reason(error)})")
        found[name] = Finding(status, redacted(text), redacted(remedy))
    return found
