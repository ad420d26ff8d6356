"""The checks of `doctor`: the NVIDIA driver and its fit to torch, memory and disk, the tracking store, and the faults of this checkout.

They run at the same time, within a time limit.
"""

import errno
import fcntl
import os
import re
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from pipeline.core import limits
from pipeline.core.environment import Environment, Paths
from pipeline.core.refusal import Refusal, listed
from pipeline.core.untrusted import reason, shown
from pipeline.core.yaml_document import Document
from pipeline.inference import gpu_diagnostics
from pipeline.inference.gpu_diagnostics import dot, major
from pipeline.runs.mlflow.address import Address
from pipeline.runs.utilization import Gpus, read_gpus

Status = Literal["ok", "warning", "problem"]
MIB, GIB = 2**20, 2**30
LITTLE_MEMORY, LEAST_DISK, LITTLE_DISK, SERVER_S, MOST_NAMED = 2 * GIB, 64 * MIB, 2 * GIB, 1.6, 4
LIMIT_S, LIMIT_FOR_TRAINING_S = 2.2, 10.0
WRITTEN = (
    *(".", ".dvc/cache", ".dvc/tmp", ".pipeline", ".pipeline/journal", ".pipeline/work"),
    *("data", "models", "metrics", "plots", "predictions"),
)
"""Folders of a checkout to which DVC and a training write, if they exist."""
CUDA_OF_TORCH = re.compile(r"^cuda\b.*= *'([\d.]+)'", re.MULTILINE)
ENTRY = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[.*?\])?==([^\s;]+)(?:\s*;\s*([^\\\n]+))?", re.MULTILINE)
ONLY_ON_GPUS = ("nvidia-", "cuda-", "triton")
INSTALL = "`rm -f .venv/.locked; make setup`, then `source .venv/bin/activate`, or `make image` for the container"
OF_CLIENT = (
    *("MLFLOW_TRACKING_AUTH", "MLFLOW_TRACKING_AWS_SIGV4", "MLFLOW_WORKSPACE"),
    *("MLFLOW_TRACKING_INSECURE_TLS", "MLFLOW_TRACKING_SERVER_CERT_PATH", "MLFLOW_TRACKING_CLIENT_CERT_PATH"),
)
"""With one of these variables, only MLflow's client can send the requests that a server expects."""
LATER = "a training runs nevertheless, and `python -m pipeline sync` sends its record later"


@dataclass(frozen=True)
class Finding:
    """Holds what a check has found. The status is `problem` if a training would fail.

    `remedy` says what to do, with commands in backticks; "" if there is nothing to do. `name` is that of the check; `examine` sets it.
    """

    status: Status
    text: str
    remedy: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.text}" + (f": {self.remedy}" if self.remedy else "")


ok, warning, problem = partial(Finding, "ok"), partial(Finding, "warning"), partial(Finding, "problem")


@dataclass(frozen=True)
class Context:
    """The environment variables, the checkout and the machine to check. `top` is the checkout, and `system` the root of the file system."""

    environment: Environment
    top: Path = field(default_factory=Path)
    system: Path = Path("/")

    @cached_property
    def gpus(self) -> Gpus:
        """Return the version of the NVIDIA driver, and the GPUs."""
        return read_gpus(self.system)


def cuda_of_torch() -> str | None:
    """Return the CUDA version with which torch was built, such as "13.2", without importing it; None if it was built without, or is not installed."""
    found = find_spec("torch")
    path = Path(found.origin).with_name("version.py") if found and found.origin else Path()
    match = CUDA_OF_TORCH.search(path.read_text(encoding="utf-8")) if path.is_file() else None
    return match[1] if match else None


def driver(context: Context) -> Finding:
    """Compare the NVIDIA driver with the CUDA version of torch. The status is `problem` only if PIPELINE_DEVICE demands a GPU."""
    needed, found, device = cuda_of_torch(), context.gpus, context.environment.device
    if found.cuda and needed:
        too_old = int(major(found.cuda)) < int(major(needed))
    else:
        too_old = gpu_diagnostics.is_too_old(found.driver or "0", needed)
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in gpu_diagnostics.HIDING
    if found.devices and needed and not too_old and not hidden:
        supported = f" (up to CUDA {found.cuda})" if found.cuda else ""
        return ok(f"NVIDIA driver {found.driver}{supported}, torch is built for CUDA {needed}")
    if obstacle := gpu_diagnostics.obstacle(needed, system=context.system, driver=found.driver):
        text, _, remedy = obstacle.partition(": ")
        return Finding("problem" if device.startswith("cuda") else "ok" if device == "cpu" else "warning", text, remedy)
    if device.startswith("cuda"):
        remedy = "`unset PIPELINE_DEVICE`, or run on a machine with a GPU"
        return problem(f"PIPELINE_DEVICE={device}, but this machine has no NVIDIA GPU", remedy)
    return ok("no NVIDIA GPU: training runs on the CPU")


def gpus(context: Context) -> Finding:
    """List the GPUs with memory and compute capability. The status is `problem` if torch has none of the kernels that PIPELINE_DEVICE demands."""
    devices, device, cuda = context.gpus.devices, context.environment.device, cuda_of_torch()
    memory = [
        f"{in_units(gpu.free_bytes)} of {in_units(gpu.memory_bytes)} free" if gpu.memory_bytes else "memory of the CPU" for gpu in devices
    ]
    described = [f"{at}: {gpu.name}, {memory[at]}, compute capability {dot(gpu.capability)}" for at, gpu in enumerate(devices)]
    text, oldest = "; ".join(described) or "none", gpu_diagnostics.oldest_capability(cuda)
    lacking = [index for index, gpu in enumerate(devices) if gpu.capability < oldest]
    if not lacking or device == "cpu":
        return ok(text)
    text += f". torch's CUDA {cuda} needs compute capability {dot(oldest)}, which GPU {', '.join(map(str, lacking))} lacks"
    if len(lacking) == len(devices):
        remedy = f"`export PIPELINE_DEVICE=cpu`, or another build of torch ({gpu_diagnostics.REBUILD})"
        return Finding("problem" if device.startswith("cuda") else "warning", text, remedy)
    others = ",".join(str(index) for index in range(len(devices)) if index not in lacking)
    return warning(text, f"`export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={others}`")


def memory(_context: Context) -> Finding:
    """Check the free memory of the machine, or of the cgroup if its limit is smaller, and whether the OOM killer has killed processes."""
    import psutil

    machine, limit = psutil.virtual_memory(), limits.memory_limit_bytes()
    total = min(machine.total, limit or machine.total)
    free, is_limited = min(total, machine.available), total < machine.total
    text = f"{in_units(free)} of {in_units(total)} free" + (" (limit of the cgroup)" if is_limited else "")
    remedy = "raise `docker run --memory`, or the limit of the job" if is_limited else "`ps aux --sort -rss | head` names what uses it"
    if killed := limits.num_oom_kills():
        return warning(f"{text}; {killed} processes of this cgroup were killed because its memory was used up", remedy)
    return warning(f"{text}; a training with DVC and tracking can need 2 GiB", remedy) if free < LITTLE_MEMORY else ok(text)


def disk(context: Context, statvfs: Callable[[Path], os.statvfs_result] = os.statvfs) -> Finding:
    """Check the free space of the file systems that a training writes to. The status is `problem` if no checkpoint fits on one."""
    folders: dict[int, Path] = {}
    for path in (*(context.top / name for name in WRITTEN), context.environment.root / ".pipeline"):
        folder = existing(path.resolve())
        folders.setdefault(folder.stat().st_dev, folder)
    free = {folder: (status := statvfs(folder)).f_bavail * status.f_frsize for folder in folders.values()}
    text, least = ", ".join(f"{in_units(count)} free in {path}" for path, count in free.items()), min(free.values())
    remedy = "remove files, or `dvc gc --workspace` (results of other commits in DVC's cache)"
    return ok(text) if least >= LITTLE_DISK else Finding("problem" if least < LEAST_DISK else "warning", text, remedy)


def existing(path: Path) -> Path:
    """Return the path, or its nearest parent that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def in_units(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= GIB else f"{size_bytes / MIB:.0f} MiB"


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


def ownership(context: Context) -> Finding:
    """Check that this user can write to the folders that a training writes to. For root, also check that root owns them: otherwise the owner
    could not change the files that the training writes.
    """
    folders = [path.resolve() for name in WRITTEN if (path := context.top / name).is_dir()]
    uid, checkout = os.geteuid(), shlex.quote(str(context.top.resolve()))
    locked = [path for path in folders if not os.access(path, os.W_OK | os.X_OK, effective_ids=True)]
    foreign = [path for path in folders if path.stat().st_uid != uid]
    owner = (foreign or folders)[0].stat()
    remedy = f"`sudo chown -R {uid}:{os.getegid()} {checkout}`, or run as its owner (`docker run --user {owner.st_uid}:{owner.st_gid}`)"
    if locked:
        text = f"uid {uid} cannot write {listed([*map(str, locked)], MOST_NAMED)}"
        if set(locked) <= set(foreign):
            return problem(f"{text}, which belongs to uid {owner.st_uid}", remedy)
        return problem(text, f"`chmod -R u+w {checkout}`, or mount the folder without `:ro`")
    if foreign and uid == 0:
        text = f"root runs in a checkout of uid {owner.st_uid} ({listed([*map(str, foreign)], MOST_NAMED)}), who cannot change what a training writes as root"
        return warning(text, remedy)
    return ok(f"uid {uid} can write the checkout")


def dvc_files(context: Context) -> Finding:
    """Check that `dvc.yaml` and `dvc.lock` are valid YAML: a merge that Git could not complete leaves both versions in them."""
    for name in ("dvc.yaml", "dvc.lock"):
        try:
            if (path := context.top / name).exists():
                Document.of(path.read_text(encoding="utf-8"), Path(name))
        except (Refusal, OSError, UnicodeDecodeError) as error:
            found = str(replace(error.problems[0], remedy="")) if isinstance(error, Refusal) else str(error)
            remedy = f"`git checkout HEAD -- {name}`, then `python -m pipeline repro` (docs/changing-parameters.md#after-a-merge)"
            return problem(f"{found}, so DVC does not run", remedy)
    return ok("dvc.yaml and dvc.lock can be read")


def lock(context: Context) -> Finding:
    """Compare the installed packages with requirements.lock, on which every stage depends. The status is `problem` if a package is missing,
    unless only GPUs need it.

    The versions are those in the names of the folders: `importlib.metadata` takes twenty times as long.
    """
    from packaging.markers import Marker

    path = Paths(context.top).lock
    if not path.is_file():
        return problem(f"{path} is missing, and every stage depends on it", "`git checkout requirements.lock`")
    entries = ENTRY.findall(path.read_text(encoding="utf-8"))
    wanted = {name: version for name, version, marker in entries if not marker or Marker(marker.strip()).evaluate()}
    installed: dict[str, str] = {}
    for info in (info for folder in dict.fromkeys(sys.path) for kind in ("dist", "egg") for info in Path(folder).glob(f"*.{kind}-info")):
        name, _, rest = info.stem.partition("-")
        installed.setdefault(re.sub(r"[-_.]+", "-", name).lower(), rest.partition("-")[0])  # an .egg-info may end in the version of Python
    missing = [name for name in wanted if name not in installed]
    different = [f"{name} {installed[name]} (not {version})" for name, version in wanted.items() if installed.get(name, version) != version]
    if parts := [f"{listed(names, MOST_NAMED)} {what}" for names, what in ((missing, "missing"), (different, "other versions")) if names]:
        status: Status = "problem" if [name for name in missing if not name.startswith(ONLY_ON_GPUS)] else "warning"
        return Finding(status, f"of {len(wanted)} packages of {path}: {'; '.join(parts)}", INSTALL)
    return ok(f"all {len(wanted)} packages of {path} are installed in its versions")


def tracking(context: Context) -> Finding:
    """Check that the MLflow server answers this user, or that the database can be read. No training depends on it."""
    address = Address.of(context.environment)
    if not context.environment.tracking:
        return ok("off (PIPELINE_TRACKING)")
    is_clients = address.is_server and any(os.environ.get(name, "").lower() not in ("", "0", "false") for name in OF_CLIENT)
    if address.given.startswith("databricks") or is_clients:
        return ok(f"{address.shown}, which was not examined")
    try:
        return (of_server if address.is_server else of_database)(address)
    except Exception as error:  # of requests, SQLAlchemy or a driver
        while error.__cause__ or error.__context__:  # the text of the error itself names objects in memory
            error = error.__cause__ or error.__context__  # type: ignore[assignment]  # not None
        text = f"{address.shown} cannot be used ({shown(getattr(error, 'strerror', None) or reason(error), 160)}); {LATER}"
        return warning(text, "start it, and see its log and `mlflow doctor`; or `unset MLFLOW_TRACKING_URI` for a database in this folder")


def of_server(address: Address) -> Finding:
    """Request the experiments from the server, with the credentials that MLflow's client would send."""
    import requests

    user, token, headers = os.environ.get("MLFLOW_TRACKING_USERNAME"), os.environ.get("MLFLOW_TRACKING_TOKEN"), {}
    auth = address.credentials or ((user, os.environ.get("MLFLOW_TRACKING_PASSWORD", "")) if user else None)
    if auth is None and token:
        headers["Authorization"] = f"Bearer {token}"
    path = "/api/2.0/mlflow/experiments/search?max_results=1"
    answer = requests.get(address.for_mlflow.rstrip("/") + path, headers=headers, auth=auth, timeout=SERVER_S)
    if answer.status_code == 200:
        return ok(f"{address.shown} answers")
    remedy = "correct MLFLOW_TRACKING_URI, or look at the log of the server or proxy"
    if answer.status_code == 403 and "host header" in answer.text.lower():
        host = address.shown.partition("://")[2].partition("/")[0]
        remedy = f"start the server with `mlflow server --allowed-hosts {host},localhost:*` and what it allows now"
    elif answer.status_code in (401, 403):
        remedy = "`export MLFLOW_TRACKING_USERNAME=... MLFLOW_TRACKING_PASSWORD=...`, or MLFLOW_TRACKING_TOKEN, of a user with permission"
    return warning(f"{address.shown} answers {answer.status_code}: {shown(answer.text, 80)}; {LATER}", remedy)


def of_database(address: Address) -> Finding:
    """Read the experiments from the database. A SQLite file is not changed."""
    from sqlalchemy import URL, create_engine, text

    url: str | URL = address.for_mlflow
    options: dict[str, float] = {"connect_timeout": 2}
    if address.given.startswith("sqlite"):
        database = Path(address.for_mlflow.partition(":///")[2])
        if not database.exists():
            return ok(f"{database}, which the first run will make")
        options = {"timeout": 1.0}
        url = URL.create("sqlite", database=database.as_uri(), query={"mode": "ro", "uri": "true"})  # a text would be decoded
    with closing(create_engine(url, connect_args=options).connect()) as connection:
        connection.execute(text("SELECT experiment_id FROM experiments LIMIT 1")).fetchone()
    return ok(address.shown)


CHECKS: dict[str, Callable[[Context], Finding]] = {
    "lock": lock,
    "driver": driver,
    "gpus": gpus,
    "memory": memory,
    "disk": disk,
    "file locks": file_locks,
    "ownership": ownership,
    "dvc files": dvc_files,
    "tracking": tracking,
}
"""The checks by name, in the order of the table. A name never changes: programs read it from the JSON."""
FOR_TRAINING = ("lock", "gpus", "disk", "file locks", "ownership", "dvc files")
"""The checks that the command `check` runs before a training. It does not cover them itself, none takes long, and none needs a server."""


def examine(context: Context, names: Iterable[str] = CHECKS, *, limit_s: float = LIMIT_S) -> list[Finding]:
    """Run the checks called `names` in one thread each, and return their findings in the order of `names`, without secrets.

    A check that raises an exception, or does not end within `limit_s` seconds, gives a warning. Its thread keeps running: a call to a file
    system or a driver that hangs cannot be interrupted.
    """
    remedy = "run `python -m pipeline doctor` again; if this stays, a driver, file system or network hangs"
    findings = {name: warning(f"no answer within {limit_s:.1f} s", remedy) for name in names}

    def run(name: str) -> None:
        try:
            findings[name] = CHECKS[name](context)
        except Exception as error:  # one check must not hide the others
            findings[name] = warning(f"could not be examined ({shown(f'{type(error).__name__}: {error}', 160)})")

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in findings]
    end_s = time.monotonic() + limit_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))
    redacted = Address.of(context.environment).redacted
    return [Finding(one.status, redacted(one.text), redacted(one.remedy), name) for name, one in findings.items()]
