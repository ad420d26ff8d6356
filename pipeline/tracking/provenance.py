"""Where a result comes from: what cannot be found out says `unknown: REASON`, and nothing here raises."""

import getpass
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from pipeline import files
from pipeline.environment import Environment
from pipeline.tracking.facts import Scalar

GIT_TIMEOUT_S = 10
LOCK = "requirements.lock"
LIBRARIES = ("torch", "torchvision", "numpy", "dvc", "mlflow", "pydantic", "safetensors", "pillow", "scikit-learn")
FLAGS = ("PYTHONHASHSEED", "OMP_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE", "TORCH_LOGS")
COMPLAINTS = {
    "dubious ownership": "this checkout belongs to another user (git: dubious ownership)",
    "not a git repository": "this folder is in no git repository",
    "'HEAD'": "this repository has no commit yet",
}
# what a run writes itself does not make its commit dirty
CHANGES = ("status", "--porcelain", "--", ".", ":(exclude)dvc.lock", ":(exclude)metrics", ":(exclude)plots")


def tags(environment: Environment) -> dict[str, str]:
    """Commit, difference, DVC, versions, machine: for journal and MLflow, never for a file whose bytes are promised."""
    facts: dict[str, Callable[[], str]] = {
        "mlflow.source.git.commit": lambda: git("rev-parse", "HEAD"),
        "pipeline.git.dirty": lambda: json.dumps(bool(git(*CHANGES))),
        "pipeline.git.difference": difference,
        "pipeline.dvc.stage": lambda: environment.dvc_stage or "none: not started by DVC",
        "pipeline.dvc.experiment": lambda: environment.dvc_experiment or "none",
        "pipeline.lock_sha256": lock,
        "pipeline.python": platform.python_version,
        "pipeline.platform": platform.platform,
        "pipeline.host": socket.gethostname,
        "mlflow.user": user,
        "pipeline.driver": driver,
        "pipeline.gpu": graphics,
        "pipeline.image.digest": lambda: variable("PIPELINE_IMAGE_DIGEST"),
        "pipeline.image.revision": lambda: variable("PIPELINE_IMAGE_REVISION"),
        "pipeline.flags": lambda: json.dumps(
            {name: os.environ[name] for name in FLAGS if name in os.environ} | {"optimize": sys.flags.optimize}
        ),
    }
    facts |= {f"pipeline.version.{name}": lambda name=name: metadata.version(name) for name in LIBRARIES}  # type: ignore[misc]
    return {name: known(find) for name, find in facts.items()}


class Unknown(Exception):
    """Why a fact cannot be found out, in plain words."""


def known(find: Callable[[], str]) -> str:
    try:
        return find() or "unknown: the answer was empty"
    except (Unknown, metadata.PackageNotFoundError) as unknown:
        return f"unknown: {reason_of(unknown)}"
    except Exception as error:  # provenance may be incomplete, never silently and never fatally
        return f"unknown: {type(error).__name__}: {first_line(str(error))}".rstrip(": ")


def reason_of(unknown: Exception) -> str:
    return f"{unknown.name} is not installed" if isinstance(unknown, metadata.PackageNotFoundError) else str(unknown)


def first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")


def git(*arguments: str) -> str:
    """Raises Unknown where git cannot say."""
    try:
        result = subprocess.run(
            ["git", *arguments],  # the git of the user's PATH
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"},
        )
    except FileNotFoundError:
        raise Unknown("git is not installed") from None
    except subprocess.TimeoutExpired:
        raise Unknown(f"git did not answer within {GIT_TIMEOUT_S} s") from None
    if result.returncode:
        raise Unknown(complaint(first_line(result.stderr)) or f"git ended with {result.returncode}")
    return result.stdout.rstrip()


def complaint(of_git: str) -> str:
    """Git's own words name paths, which belong into no store that others read."""
    return next((words for piece, words in COMPLAINTS.items() if piece in of_git), of_git.removeprefix("fatal: "))


def difference() -> str:
    """The files that differ from the commit, and the size and digest of the difference."""
    changed = git(*CHANGES)
    if not changed:
        return "none"
    text = git("diff", "--no-ext-diff", "HEAD", "--", *CHANGES[3:])
    listed = changed.splitlines()
    more = [f"and {len(listed) - 50} more"] if len(listed) > 50 else []
    return "\n".join([f"{len(text.encode())} bytes, digest {files.digest_of(text)}", *listed[:50], *more])


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


def graphics() -> str:
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
