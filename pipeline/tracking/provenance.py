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
LIBRARIES = ("torch", "torchvision", "numpy", "dvc", "mlflow", "pydantic", "safetensors", "pillow", "scikit-learn")
FLAGS = ("PYTHONHASHSEED", "OMP_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE", "TORCH_LOGS")
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
        "pipeline.lock_sha256": lambda: files.digest(Path("requirements.lock")),
        "pipeline.python": platform.python_version,
        "pipeline.platform": platform.platform,
        "pipeline.host": socket.gethostname,
        "mlflow.user": getpass.getuser,
        "pipeline.gpu": graphics,
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
        return find()
    except Exception as error:  # provenance may be incomplete, never silently and never fatally
        reason = str(error).strip().splitlines() or [""]
        return f"unknown: {type(error).__name__}: {reason[0]}".rstrip(": ")


def git(*arguments: str) -> str:
    """Raises with git's own words, which name a missing git, a foreign-owned checkout or a folder without a repository."""
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
    if result.returncode:
        raise RuntimeError(result.stderr.strip() or f"git ended with {result.returncode}")
    return result.stdout.rstrip()


def difference() -> str:
    """The files that differ from the commit, and the size and digest of the difference."""
    changed = git(*CHANGES)
    if not changed:
        return "none"
    text = git("diff", "HEAD", "--", *CHANGES[3:])
    listed = changed.splitlines()
    more = [f"and {len(listed) - 50} more"] if len(listed) > 50 else []
    return "\n".join([f"{len(text.encode())} bytes, digest {files.digest_of(text)}", *listed[:50], *more])


def graphics() -> str:
    import pynvml

    pynvml.nvmlInit()
    names = [pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(pynvml.nvmlDeviceGetCount())]
    return f"driver {pynvml.nvmlSystemGetDriverVersion()}: {', '.join(names)}"


def variable(name: str) -> str:
    if not os.environ.get(name):
        raise LookupError(f"{name} is not set")
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
