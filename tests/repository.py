"""A user's checkout with Git and DVC, and commands that run in it."""

import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from tests import project
from tests.imports import TOP

GIT = ("git", "-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")


def variables(**more: str) -> dict[str, str]:
    """Return the environment of a command, with the virtual environment of the tests first in PATH."""
    return {**os.environ, "DVC_NO_ANALYTICS": "1", "PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}", **more}


def run(folder: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the checkout and return its exit code and output.

    The output goes to files. A pipe would stay open until all processes that the command has started end, such as the workers of DVC's queue.
    """
    with tempfile.TemporaryFile("a+") as stdout, tempfile.TemporaryFile("a+") as stderr:
        done = subprocess.run(command, cwd=folder, stdout=stdout, stderr=stderr, timeout=900, check=False, env=variables(**more))
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(command, done.returncode, stdout.read(), stderr.read())


def call(folder: Path, *command: str, **more: str) -> str:
    """Run a command, which must succeed, and return its output of both streams."""
    done = run(folder, *command, **more)
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def client(address: str) -> Any:
    """Return MLflow's client of a store or server. Importing MLflow and opening a store warn about MLflow's own dependencies."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient

        client = MlflowClient(address)
        client.search_experiments(max_results=1)
        return client


def runs(address: str) -> list[Any]:
    """Return all runs of all experiments."""
    store = client(address)
    return list(store.search_runs([experiment.experiment_id for experiment in store.search_experiments()]))


def repository(folder: Path, changes: dict[str, Any] | None = None, *, setting: str = "digits") -> Path:
    """Make a committed checkout with DVC, with a copy of the code that a test may edit."""
    project.make(folder, changes, copy=True, setting=setting)
    for name in (".gitignore", ".dvcignore", ".dvc/config", ".dvc/.gitignore"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes((TOP / name).read_bytes())
    call(folder, *GIT, "init", "-q")
    call(folder, *GIT, "add", "-A")
    call(folder, *GIT, "commit", "-qm", "begin")
    return folder


def copy_of_checkout(folder: Path) -> Path:
    """Copy this checkout, without anything that Git ignores, and begin a repository in the copy. Nothing is committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=TOP, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (TOP / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(TOP / name, folder / name)
    call(folder, "git", "init", "-q")
    return folder
