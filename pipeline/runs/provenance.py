"""The provenance of a result: facts about code, libraries and machine. A fact that cannot be determined is `unknown: REASON`."""

import getpass
import json
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

from pipeline.core import files
from pipeline.core.environment import Environment
from pipeline.inference.gpu_diagnostics import SYSTEM
from pipeline.runs import utilization

GIT_TIMEOUT_S = 10
EXPLANATIONS = {
    "dubious ownership": "this checkout belongs to another user (git: dubious ownership)",
    "not a git repository": "this folder is not in a git repository",
    "'HEAD'": "this repository has no commit yet",
}
"""Replaces a message of git that has one of these texts: it may have a path of this machine, which a shared MLflow server should not get."""
# Results that a run writes do not count as uncommitted changes.
WITHOUT_RESULTS = (".", ":(exclude)dvc.lock", ":(exclude)metrics", ":(exclude)plots")
CODE = (*WITHOUT_RESULTS, ":(exclude)params.yaml", ":(exclude).dvc/tmp")
"""The pathspec of the files to compare between commits. Parameters are compared by value. DVC writes a command of each experiment to .dvc/tmp."""
CHANGES = ("status", "--porcelain", "--", *WITHOUT_RESULTS)
COMMIT = re.compile(r"[0-9a-f]{40,64}")
SHORT = 12


class Unknown(Exception):
    """Raised if a fact about the code or the machine, such as the commit, cannot be determined. The message contains the reason."""


def first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")


def git(*arguments: str) -> str:
    """Run git with these arguments and return its output. Raises Unknown if git cannot be run, fails, or exceeds `GIT_TIMEOUT_S`."""
    try:
        result = subprocess.run(
            ["git", *arguments],  # found on the user's PATH
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
    except OSError as error:
        raise Unknown(f"git cannot be run ({error.strerror})") from None
    except subprocess.TimeoutExpired:
        raise Unknown(f"git did not answer within {GIT_TIMEOUT_S} s") from None
    if result.returncode:
        message = first_line(result.stderr).removeprefix("fatal: ") or f"git ended with {result.returncode}"
        raise Unknown(next((words for piece, words in EXPLANATIONS.items() if piece in message), message))
    return result.stdout.rstrip()


def difference() -> str:
    """Return a text that describes the uncommitted changes, or "none" if there are no changes.

    The first line has the size and the digest of `git diff HEAD`, without params.yaml, whose values a run records. The next lines are the
    changed files, one per line and at most 50. Changes of a run's results (`dvc.lock`, `metrics`, `plots`) do not count. Raises Unknown if
    git fails.
    """
    changed = git(*CHANGES)
    if not changed:
        return "none"
    text = git("diff", "--no-ext-diff", "HEAD", "--", *CODE)
    listed = changed.splitlines()
    more = [f"and {len(listed) - 50} more"] if len(listed) > 50 else []
    return "\n".join([f"{len(text.encode())} bytes, digest {files.digest_of(text)}", *listed[:50], *more])


def code_between(one: str, other: str) -> list[str] | None:
    """Return the paths that differ between the commits `one` and `other`, without params.yaml and the files that a run writes.

    Return None if they differ and one of them is not a full commit hash, or if git cannot compare them.
    """
    if one == other:
        return []
    if not (COMMIT.fullmatch(one) and COMMIT.fullmatch(other)):
        return None  # a recorded commit is untrusted: it must not become an option of git, such as --output=FILE
    try:
        return git("diff", "--name-only", "--no-ext-diff", one, other, "--", *CODE).splitlines()
    except Unknown:
        return None


def shown(fact: str) -> str:
    """Return a fact for display: a commit in short, and "unknown" without its reason."""
    if fact.startswith(UNKNOWN):
        return UNKNOWN.rstrip(": ")
    return fact[:SHORT] if COMMIT.fullmatch(fact) else fact


def changed_code(text: str) -> str:
    """Return uncommitted changes for display, without those of params.yaml: the changed files, and the digest of the changes.

    `text` is a result of `difference`.
    """
    summary, *paths = text.splitlines()
    if not paths:
        return shown(text)
    listed = [path.strip() for path in paths if Path(path[3:]).name != "params.yaml"]
    return f"{', '.join(listed)} (digest {summary.rpartition(' ')[2][:SHORT]})" if listed else "none"


LOCK = "requirements.lock"
UNKNOWN = "unknown: "
NO_DRIVER = f"{UNKNOWN}no NVIDIA driver is installed"
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
        "git.dirty": lambda: json.dumps(bool(git(*CHANGES))),
        "git.difference": difference,
        "dvc.stage": lambda: environment.dvc_stage or "none: not started by DVC",
        "dvc.experiment": lambda: environment.dvc_experiment or "none",
        "lock_sha256": lambda: files.digest(Path(LOCK)),
        "python": platform.python_version,
        "platform": platform.platform,
        "host": socket.gethostname,
        "user": user,
        "driver": lambda: utilization.read_gpus(SYSTEM).driver or NO_DRIVER,
        "gpu": gpus,
        "image.digest": lambda: os.environ.get("PIPELINE_IMAGE_DIGEST") or f"{UNKNOWN}PIPELINE_IMAGE_DIGEST is not set",
        "image.revision": lambda: os.environ.get("PIPELINE_IMAGE_REVISION") or f"{UNKNOWN}PIPELINE_IMAGE_REVISION is not set",
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
        return git("rev-parse", "HEAD")
    except Unknown:
        if recorded := os.environ.get("PIPELINE_COMMIT"):
            return recorded
        raise


def user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise Unknown(f"uid {os.getuid()} has no name") from None


def gpus() -> str:
    """Return the names of all GPUs; "none" if there is no GPU. Raises Unknown if NVML does not answer."""
    found = utilization.read_gpus(SYSTEM)
    if found.driver and not found.devices and not found.cuda:
        raise Unknown("NVML does not answer")
    return (", ".join(gpu.name for gpu in found.devices) or "none") if found.driver else NO_DRIVER
