"""Where a result comes from: what cannot be found out says `unknown: REASON`, and nothing here raises."""

import getpass
import json
import os
import platform
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from pipeline import files
from pipeline.environment import Environment
from pipeline.tracking import revision
from pipeline.tracking.facts import Scalar
from pipeline.tracking.revision import Unknown, first_line

LOCK = "requirements.lock"
LIBRARIES = ("torch", "torchvision", "numpy", "dvc", "mlflow", "pydantic", "safetensors", "pillow", "scikit-learn")
FLAGS = ("PYTHONHASHSEED", "OMP_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE", "TORCH_LOGS")


def tags(environment: Environment) -> dict[str, str]:
    """Commit, difference, DVC, versions, machine: for journal and MLflow, never for a file whose bytes are promised."""
    facts: dict[str, Callable[[], str]] = {
        "mlflow.source.git.commit": commit,
        "pipeline.git.dirty": lambda: json.dumps(bool(revision.git(*revision.CHANGES))),
        "pipeline.git.difference": revision.difference,
        "pipeline.dvc.stage": lambda: environment.dvc_stage or "none: not started by DVC",
        "pipeline.dvc.experiment": lambda: environment.dvc_experiment or "none",
        "pipeline.lock_sha256": lock,
        "pipeline.python": platform.python_version,
        "pipeline.platform": platform.platform,
        "pipeline.host": socket.gethostname,
        "mlflow.user": user,
        "pipeline.driver": driver,
        "pipeline.gpu": gpus,
        "pipeline.image.digest": lambda: variable("PIPELINE_IMAGE_DIGEST"),
        "pipeline.image.revision": lambda: variable("PIPELINE_IMAGE_REVISION"),
        "pipeline.flags": lambda: json.dumps(
            {name: os.environ[name] for name in FLAGS if name in os.environ} | {"optimize": sys.flags.optimize}
        ),
    }
    facts |= {f"pipeline.version.{name}": lambda name=name: metadata.version(name) for name in LIBRARIES}  # type: ignore[misc]
    return {name: known(find) for name, find in facts.items()}


def known(find: Callable[[], str]) -> str:
    try:
        return find() or "unknown: the answer was empty"
    except (Unknown, metadata.PackageNotFoundError) as unknown:
        return f"unknown: {reason_of(unknown)}"
    except Exception as error:  # provenance may be incomplete, never silently and never fatally
        return f"unknown: {type(error).__name__}: {first_line(str(error))}".rstrip(": ")


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


def flat(params: Mapping[str, Any]) -> dict[str, Scalar]:
    """Nested sections as `section.key`; lists as JSON."""
    return dict(leaves(params))


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Scalar]]:
    if isinstance(value, Mapping) and value:
        for key, member in value.items():
            yield from leaves(member, f"{path}.{key}" if path else str(key))
    elif value is None or isinstance(value, (str, int, float, bool)):
        yield path, value
    else:
        yield path, json.dumps(value, default=str)
