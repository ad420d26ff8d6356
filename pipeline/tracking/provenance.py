"""Where a result comes from: what cannot be found out says `unknown: REASON`, and nothing here raises."""

import getpass
import json
import os
import platform
import socket
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

from pipeline.io import files
from pipeline.runtime.environment import Environment
from pipeline.tracking import revision
from pipeline.tracking.revision import Unknown, first_line

LOCK = "requirements.lock"
LIBRARIES = ("torch", "torchvision", "numpy", "dvc", "mlflow", "pydantic", "safetensors", "pillow", "scikit-learn")
FLAGS = ("PYTHONHASHSEED", "OMP_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE", "TORCH_LOGS")


# MLflow's own tags, and those by which people filter runs; the rest is in the run's `provenance/` artifacts
TAGS = {
    "mlflow.source.git.commit": "git.commit",
    "mlflow.user": "user",
    "pipeline.dvc.experiment": "dvc.experiment",
    "pipeline.git.dirty": "git.dirty",
    "pipeline.gpu": "gpu",
    "pipeline.host": "host",
    "pipeline.image.digest": "image.digest",
}
UNKNOWN = "unknown: "


def gather(environment: Environment) -> dict[str, str]:
    """Return commit, difference, DVC, versions and machine, for journal and MLflow; a file whose bytes are promised never holds them."""
    facts: dict[str, Callable[[], str]] = {
        "git.commit": commit,
        "git.dirty": lambda: json.dumps(bool(revision.git(*revision.CHANGES))),
        "git.difference": revision.difference,
        "dvc.stage": lambda: environment.dvc_stage or "none: not started by DVC",
        "dvc.experiment": lambda: environment.dvc_experiment or "none",
        "lock_sha256": lock,
        "python": platform.python_version,
        "platform": platform.platform,
        "host": socket.gethostname,
        "user": user,
        "driver": driver,
        "gpu": gpus,
        "image.digest": lambda: variable("PIPELINE_IMAGE_DIGEST"),
        "image.revision": lambda: variable("PIPELINE_IMAGE_REVISION"),
        "flags": lambda: json.dumps({name: os.environ[name] for name in FLAGS if name in os.environ} | {"optimize": sys.flags.optimize}),
    }
    facts |= {f"version.{name}": lambda name=name: metadata.version(name) for name in LIBRARIES}  # type: ignore[misc]  # mypy does not type the default
    return {name: known(find) for name, find in facts.items()}


def tags(facts: Mapping[str, str]) -> dict[str, str]:
    """Return what is known of the facts that become tags of a run."""
    found = {tag: facts[name] for tag, name in TAGS.items()}
    return {tag: value for tag, value in found.items() if value != "none" and not value.startswith(UNKNOWN)}


def known(find: Callable[[], str]) -> str:
    try:
        return find() or f"{UNKNOWN}the answer was empty"
    except (Unknown, metadata.PackageNotFoundError) as unknown:
        return f"{UNKNOWN}{reason_of(unknown)}"
    except Exception as error:  # provenance may be incomplete, never silently and never fatally
        return f"{UNKNOWN}{type(error).__name__}: {first_line(str(error))}".rstrip(": ")


def reason_of(unknown: Exception) -> str:
    return f"{unknown.name} is not installed" if isinstance(unknown, metadata.PackageNotFoundError) else str(unknown)


def commit() -> str:
    """As Git says, or else whoever put the code here: an image holds none of Git's files."""
    try:
        return revision.git("rev-parse", "HEAD")
    except Unknown:
        if told := os.environ.get("PIPELINE_COMMIT"):
            return told
        raise


def lock() -> str:
    try:
        return files.digest(Path(LOCK))
    except FileNotFoundError:
        raise Unknown(f"{LOCK} is missing") from None


def user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise Unknown(f"uid {os.getuid()} has no name") from None


def driver() -> str:
    import pynvml

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        raise Unknown("no NVIDIA driver here") from None


def gpus() -> str:
    import pynvml

    driver()
    count = pynvml.nvmlDeviceGetCount()
    return ", ".join(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)) or "none"


def variable(name: str) -> str:
    if not os.environ.get(name):
        raise Unknown(f"{name} is not set")
    return os.environ[name]
