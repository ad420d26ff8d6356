"""The provenance of a result: facts about code, libraries and machine. A fact that cannot be determined is `unknown: REASON`."""

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
from pipeline.provenance import revision
from pipeline.provenance.revision import Unknown, first_line
from pipeline.runtime.environment import Environment

LOCK = "requirements.lock"
UNKNOWN = "unknown: "
LIBRARIES = ("torch", "torchvision", "numpy", "dvc", "mlflow", "pydantic", "safetensors", "pillow", "scikit-learn")
FLAGS = ("PYTHONHASHSEED", "OMP_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE", "TORCH_LOGS")
# The facts that become tags of a run, by the name of the tag: those for which MLflow has a tag, and those that are useful as filters.
# The artifacts in `provenance/` have all facts.
TAGS = {
    "mlflow.source.git.commit": "git.commit",
    "mlflow.user": "user",
    "pipeline.dvc.experiment": "dvc.experiment",
    "pipeline.git.dirty": "git.dirty",
    "pipeline.gpu": "gpu",
    "pipeline.host": "host",
    "pipeline.image.digest": "image.digest",
}


def gather(environment: Environment) -> dict[str, str]:
    """Return the facts by name: commit, uncommitted changes, DVC stage and experiment, versions and machine. Never raises.

    The facts are written only to MLflow and to the journal, the local folder that records a run. Reproducible files never contain them,
    because the facts differ between otherwise equal runs.
    """
    facts: dict[str, Callable[[], str]] = {
        "git.commit": commit,
        "git.dirty": lambda: json.dumps(bool(revision.git(*revision.CHANGES))),
        "git.difference": revision.difference,
        "dvc.stage": lambda: environment.dvc_stage or "none: not started by DVC",
        "dvc.experiment": lambda: environment.dvc_experiment or "none",
        "lock_sha256": lambda: files.digest(Path(LOCK)),
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
    """Return the tags of a run in MLflow, by name. `TAGS` lists the tags, and the fact that becomes the value of each.

    A tag is left out if its fact is unknown or "none".
    """
    return {tag: facts[name] for tag, name in TAGS.items() if facts[name] != "none" and not facts[name].startswith(UNKNOWN)}


def known(find: Callable[[], str]) -> str:
    """Return the fact that `find` returns, or `unknown: ` and the reason if `find` raises or returns "". Never raises."""
    try:
        return find() or f"{UNKNOWN}the answer was empty"
    except Unknown as error:
        return f"{UNKNOWN}{error}"
    except metadata.PackageNotFoundError as error:
        return f"{UNKNOWN}{error.name} is not installed"
    except FileNotFoundError as error:
        return f"{UNKNOWN}{error.filename} is missing"
    except Exception as error:  # incomplete provenance is recorded as such, and never stops a run
        return f"{UNKNOWN}{type(error).__name__}: {first_line(str(error))}".rstrip(": ")


def commit() -> str:
    """Return the commit from git; if git fails, from PIPELINE_COMMIT, which is set in a container without `.git`.

    Raises Unknown if git fails and PIPELINE_COMMIT is not set.
    """
    try:
        return revision.git("rev-parse", "HEAD")
    except Unknown:
        if recorded := os.environ.get("PIPELINE_COMMIT"):
            return recorded
        raise


def user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise Unknown(f"uid {os.getuid()} has no name") from None


def driver() -> str:
    """Return the version of the NVIDIA driver. Raises Unknown if no driver is installed, and NVMLError if the driver does not answer."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        raise Unknown("no NVIDIA driver is installed") from None
    return str(pynvml.nvmlSystemGetDriverVersion())


def gpus() -> str:
    """Return the names of all GPUs; "none" if there is no GPU. Raises the same exceptions as `driver`."""
    import pynvml

    driver()
    indexes = range(pynvml.nvmlDeviceGetCount())
    return ", ".join(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in indexes) or "none"


def variable(name: str) -> str:
    if not os.environ.get(name):
        raise Unknown(f"{name} is not set")
    return os.environ[name]
