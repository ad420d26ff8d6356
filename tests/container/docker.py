"""Call the Docker engine."""

import json
import os
import stat
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.repository import GIT, call, copy_of_checkout, variables

DOCKER = os.environ.get("DOCKER", "docker")
BASE_IMAGE = os.environ.get("BASE_IMAGE", "")
IMAGE = f"pipeline:test-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"
FLAGS = "--read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges --network none --pids-limit 2048"
HARDENED = tuple(FLAGS.split())
HOME = "/home/pipeline"
ONE_THREAD = ("-e", "PIPELINE_THREADS=1")  # other tests use the other cores
TIMEOUT_S = 900
CANARY = "canary-8c1f0e5d7a"
CANARIES = (
    ".env",
    "secrets/postgres",
    "pipeline/.env",
    "pipeline/models/token",
    "data/raw/private.npy",
    "mlruns/note",
    "models/old.safetensors",
)
"""Files of a checkout that must not be in an image."""


def docker(*words: str, code: int = 0, **more: str) -> str:
    """Return the output of `docker`, both streams together; `code` is the expected exit code."""
    done = subprocess.run(
        [DOCKER, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, **more},
    )
    assert done.returncode == code, f"docker {' '.join(words)}: exit {done.returncode}\n{done.stdout}"
    return done.stdout


def run(*words: str, code: int = 0) -> str:
    """Return the output of `docker run --rm`."""
    return docker("run", "--rm", *ONE_THREAD, *words, code=code)


def inspect(name: str) -> dict[str, Any]:
    return dict(json.loads(docker("inspect", name))[0])


@contextmanager
def container(*words: str) -> Iterator[str]:
    """Run a container in the background and yield its name; remove it after the block."""
    name = f"pipeline-test-{uuid.uuid4().hex[:8]}"
    docker("run", "--detach", "--name", name, *ONE_THREAD, *words)
    try:
        yield name
    finally:
        docker("rm", "--force", name)


@contextmanager
def volume() -> Iterator[str]:
    name = f"pipeline-test-{uuid.uuid4().hex[:8]}"
    docker("volume", "create", name)
    try:
        yield name
    finally:
        docker("volume", "rm", "--force", name)


def clone(folder: Path) -> Path:
    """Copy the files of this checkout to `folder` and commit them to a new Git repository there."""
    copy_of_checkout(folder)
    call(folder, *GIT, "add", "-A")
    call(folder, *GIT, "commit", "-qm", "begin")
    return folder


def make_accessible(folder: Path) -> None:
    """Allow other users to pass through the parent folders, which pytest makes private."""
    for parent in folder.parents:
        if not parent.stat().st_mode & stat.S_IXOTH:
            parent.chmod(0o755)


def make(folder: Path, *words: str, **more: str) -> str:
    """Return the output of `make` in `folder`, with the engine and the base image of these tests."""
    settings = {"DOCKER": DOCKER, "BASE_IMAGE": BASE_IMAGE, "IMAGE": IMAGE} | more
    command = ["make", *words, *(f"{name}={value}" for name, value in settings.items())]
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, check=False, env=variables()
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}"
    return done.stdout


def wait_for_output(name: str, text: str, within_s: float = 180) -> None:
    """Wait until the container has printed `text`; it must not end before."""
    deadline = time.monotonic() + within_s
    while text not in (output := docker("logs", name)):
        assert time.monotonic() < deadline, output
        assert inspect(name)["State"]["Running"], output
        time.sleep(0.2)
