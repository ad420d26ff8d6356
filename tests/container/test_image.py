"""The contents of the image, and what two builds of one commit have in common."""

import os
import re
import subprocess
import time
import uuid
from pathlib import Path

import pytest

from pipeline.container import checkout
from tests.container import docker
from tests.container.docker import CANARY, inspect, run
from tests.imports import TOP
from tests.repository import GIT, call

pytestmark = pytest.mark.container

UNWANTED = r"""
find / -xdev \( -path /proc -o -path /sys \) -prune -o \
  \( -name '*.a' -path '/opt/*' -o -path '*/scipy/*/tests' -o -path '*/pandas/tests' -o -name .git -o -path '*/.cache/pip' \
  -o -path '/opt/*' \( -name pip -o -name 'libnvperf*' -o -name 'libpcsampling*' -o -name 'libcheckpoint*' -o -name 'protoc*' ! -name '*.py' ! -name '*.pyc' -type f \) \
  -o -path '/var/lib/apt/lists/*' -type f \) -print
"""
PROFILE = """
import torch
with torch.profiler.profile() as profile:
    torch.ones(2, 2) @ torch.ones(2, 2)
print("matrix products found:", "aten::mm" in profile.key_averages().table())
"""


def test_the_image_holds_the_code_and_no_other_file_of_the_checkout(image: str, commit: Path) -> None:
    found = set(run("--entrypoint", "find", image, "/opt/pipeline", "/home", "-type", "f", "-not", "-name", "*.pyc").split())
    skeleton = {path for path in found if Path(path).name in (".bashrc", ".profile", ".bash_logout")}
    assert found - skeleton == {f"/opt/pipeline/{path}" for path in checkout.digests(commit)}
    search = f"grep -rlF {CANARY} / --exclude-dir=proc --exclude-dir=sys --exclude-dir=venv || true"
    assert run("--user", "0", "--entrypoint", "sh", image, "-c", search) == ""
    assert CANARY not in docker.docker("history", "--no-trunc", image)


def test_the_image_holds_no_file_that_no_training_uses(image: str) -> None:
    assert run("--user", "0", "--entrypoint", "sh", image, "-c", UNWANTED) == ""


def test_the_profiler_works(image: str) -> None:
    assert "matrix products found: True" in run("--entrypoint", "python", image, "-c", PROFILE)  # among lines of the profiler


@pytest.mark.parametrize(("base", "label"), [("x.example/cuda:1@sha256:abc", True), ("x.example/cuda:1", False), ("", True)])
def test_the_digest_in_the_labels_is_that_of_the_base(base: str, label: bool) -> None:
    output = call(TOP, "make", "--dry-run", "image", f"BASE_IMAGE={base}")
    name = base or base_of_the_dockerfile()
    assert ("--label org.opencontainers.image.base.digest=" in output) == label
    assert not label or f"base.digest={name.partition('@')[2]} " in output


def base_of_the_dockerfile() -> str:
    lines = (TOP / "Dockerfile").read_text().splitlines()
    return next(line for line in lines if line.startswith("ARG BASE_IMAGE=")).removeprefix("ARG BASE_IMAGE=")


def test_labels_user_and_revision(image: str, commit: Path) -> None:
    config = inspect(image)["Config"]
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()}
    head = call(commit, "git", "rev-parse", "HEAD").strip()
    assert labels["revision"] == f"{head}-changed"  # the canaries
    assert labels["version"] == "0.1.0"
    assert labels["base.name"] == (docker.BASE_IMAGE or base_of_the_dockerfile())
    assert labels.get("base.digest", "") == labels["base.name"].partition("@")[2]
    assert labels["created"] == call(commit, "git", "log", "-1", "--format=%cI").strip()
    assert f"PIPELINE_IMAGE_REVISION={head}-changed" in config["Env"]
    assert config["User"] == "1000:1000"


@pytest.mark.parametrize(
    ("remote", "source"),
    [
        ("https://me:canary@host.example/team/name.git", "https://host.example/team/name.git"),
        ("ssh://git@host.example:22/team/name.git", "ssh://git@host.example:22/team/name.git"),
        ("git@host.example:team/name.git", "ssh://git@host.example/team/name.git"),
        ("/srv/name.git", None),
    ],
)
def test_the_source_in_the_labels_is_the_address_of_the_remote_without_a_password(remote: str, source: str | None, tmp_path: Path) -> None:
    call(tmp_path, *GIT, "init", "-q")
    call(tmp_path, *GIT, "remote", "add", "origin", remote)
    output = call(tmp_path, "make", "--dry-run", "--file", str(TOP / "Makefile"), "image", "LICENSES=MIT OR Apache-2.0")
    assert re.findall(r"image\.source='(.*?)'", output) == ([source] if source else [])
    assert "--label org.opencontainers.image.licenses='MIT OR Apache-2.0'" in output


def test_no_program_of_the_image_gets_the_rights_of_another_user(image: str) -> None:
    assert run("--user", "0", "--entrypoint", "find", image, "/", "-xdev", "-perm", "/6000", "-type", "f") == ""


def test_the_code_is_compiled_and_its_user_can_change_none_of_it(image: str) -> None:
    script = "find /opt -name '*.py' | wc -l; find /opt -name '*.pyc' | wc -l; find /opt -writable | wc -l"
    sources, compiled, writable = map(int, run("--entrypoint", "sh", image, "-c", script).split())
    assert compiled > 0.95 * sources
    assert writable == 0


def test_another_build_of_the_commit_has_the_same_code_layer_to_the_byte(image: str, commit: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    call(tmp_path, *GIT, "clone", "-q", str(commit), str(other))
    for path in other.rglob("*"):
        if path.is_file() and ".git" not in path.parts:
            path.chmod(0o664)
            os.utime(path, (1e9, 1e9))
    (other / "pipeline/unknown").write_text(
        uuid.uuid4().hex, encoding="utf-8"
    )  # changes the build context, so that no layer comes from a cache
    output = docker.make(other, "image", IMAGE="pipeline:again", BUILD_ARGS="--progress=plain --target code")
    packed = "tar -C {} -c --sort=name opt/pipeline | sha256sum"
    assert "CACHED" not in next(step for step in output.split("\n\n") if "-s /layer" in step)
    again = run("--entrypoint", "sh", "pipeline:again", "-c", packed.format("/layer"))
    docker.docker("rmi", "pipeline:again")
    assert run("--entrypoint", "sh", image, "-c", packed.format("/")) == again


def test_a_change_of_code_rebuilds_no_dependency_and_takes_seconds(image: str, commit: Path) -> None:
    path = commit / "pipeline/core/spec.py"
    before = path.read_bytes()
    begin = time.monotonic()
    try:
        path.write_bytes(before + b"\n# edited\n")
        output = docker.make(commit, "image", IMAGE="pipeline:edited", BUILD_ARGS="--progress=plain")
    finally:
        path.write_bytes(before)
        subprocess.run([docker.DOCKER, "rmi", "pipeline:edited"], check=False, capture_output=True)
    assert time.monotonic() - begin < 20
    steps = [step for step in output.split("\n\n") if " RUN " in step.partition("\n")[0]]
    assert len(steps) >= 4, output
    assert all("CACHED" in step or "-s /layer /layer/opt/pipeline" in step for step in steps), output


def test_the_image_without_its_base_is_as_small_as_documented(image: str) -> None:
    """The sizes are in docs/container.md."""
    base = inspect(docker.BASE_IMAGE)["Size"] if docker.BASE_IMAGE else 0
    assert inspect(image)["Size"] - base < 6.2e9
