"""The image as people run it: with no mount, hardened, on their own checkout, and stopped in the middle."""

import os
import random
import re
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from pipeline import files
from tests.container import docker
from tests.container.docker import CANARY, HARDENED, container, inspect, run, volume
from tests.repository import GIT, call, client, runs

pytestmark = pytest.mark.container

FOREIGN = 54321
"""A uid that neither this machine nor the image knows."""
STOP_WITHIN_S = 10
HOME = "/home/pipeline"
DIGEST = ("--entrypoint", "sha256sum")
MODEL = "models/model.safetensors"


@pytest.fixture(scope="module")
def default(image: str) -> dict[str, str]:
    """What `docker run IMAGE` says, and the digest of the model, of a run with secrets in its environment."""
    secrets = [word for name in ("MLFLOW_TRACKING_TOKEN", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD") for word in ("--env", f"{name}={CANARY}")]
    with volume() as name:
        said = run(*secrets, "--volume", f"{name}:{HOME}", image)
        digest = model_digest(name, image)
        written = run("--volume", f"{name}:{HOME}", "--user", "0", "--entrypoint", "sh", image, "-c", f"grep -rlF {CANARY} {HOME} || true")
        commit = run(
            "--volume",
            f"{name}:{HOME}",
            "--entrypoint",
            "sh",
            image,
            "-c",
            f'grep -h -o \'"mlflow.source.git.commit": *"[^"]*"\' -r {HOME}/.pipeline | head -1',
        )
    return {"said": said, "digest": digest, "written": written, "commit": commit}


def model_digest(name: str, image: str) -> str:
    return run("--volume", f"{name}:{HOME}", *DIGEST, image, f"{HOME}/{MODEL}").split()[0]


def test_the_main_job_ends_in_the_accuracy_and_says_where_the_model_is(default: dict[str, str]) -> None:
    *_, accuracy, model, last = default["said"].splitlines()
    assert re.match(r"test accuracy 0\.9[5-9]\d\d ", accuracy)
    assert model.startswith("model: ")
    assert (
        last
        == f"container: the model is in the volume: docker run --rm -v NAME:{HOME} --entrypoint cat IMAGE {HOME}/{MODEL} > model.safetensors"
    )


def test_no_secret_is_said_or_written(default: dict[str, str]) -> None:
    assert CANARY not in default["said"]
    assert default["written"] == ""


def test_the_revision_of_the_image_is_the_commit_of_the_run(default: dict[str, str], image: str) -> None:
    assert inspect(image)["Config"]["Labels"]["org.opencontainers.image.revision"] in default["commit"]


def test_all_hardened_flags_together_and_any_uid(image: str) -> None:
    said = run(*HARDENED, "--user", f"{FOREIGN}:{FOREIGN}", image)
    assert "test accuracy" in said
    assert "container: the model is in this container: docker cp " in said.splitlines()[-1]


def test_a_verb_runs_and_a_wrong_one_is_answered_with_all(image: str) -> None:
    assert "check: params.yaml is fine" in run(*HARDENED, image, "check")
    said = run(image, "trian", code=2)
    assert "there is no verb 'trian'" in said
    assert all(f"error: {verb}" in said for verb in ("prepare", "train", "evaluate", "check", "verify", "dvc, mlflow"))


def test_a_place_that_cannot_be_written_is_refused_with_the_flag(image: str) -> None:
    assert "add `--tmpfs /tmp`" in run("--read-only", image, "check", code=2)


def test_stopped_in_the_middle_it_goes_on_to_the_same_bytes(image: str, default: dict[str, str]) -> None:
    with volume() as name:
        words = ("--volume", f"{name}:{HOME}", "--env", "PIPELINE_CHECKPOINT_EVERY_S=1", image)
        with container(*words) as first:
            wait_for(first, "train: step 50 ")
            time.sleep(random.uniform(0, 1.5))
            begin = time.monotonic()
            docker.docker("stop", "--time", str(STOP_WITHIN_S), first)
            took_s = time.monotonic() - begin
            state, said = inspect(first)["State"], docker.docker("logs", first)
        assert state["ExitCode"] == 143, said
        assert took_s < STOP_WITHIN_S, said
        assert re.search(r"step \d+ is saved", said)
        status = run("--volume", f"{name}:{HOME}", "--workdir", HOME, "--entrypoint", "python", image, "-c", STATUS)
        assert status.split() == ["KILLED"]
        again = run(*words)
        assert re.search(r"train: .* going on after step \d+", again), again
        assert "test accuracy" in again
        assert model_digest(name, image) == default["digest"]


STATUS = "import sqlite3; print(*[status for status, in sqlite3.connect('mlflow.db').execute('select status from runs')])"


def wait_for(name: str, words: str, within_s: float = 180) -> None:
    deadline = time.monotonic() + within_s
    while words not in (said := docker.docker("logs", name)):
        assert time.monotonic() < deadline, said
        assert inspect(name)["State"]["Running"], said
        time.sleep(0.2)


@pytest.fixture(scope="module")
def mounted(image: str, commit: Path) -> Path:
    """A checkout of a foreign uid, after `make docker-repro`."""
    for path in (commit, *commit.rglob("*")):
        os.chown(path, FOREIGN, FOREIGN, follow_symlinks=False)
    for folder in (*commit.parents,)[:3]:
        folder.chmod(0o755)  # pytest keeps its folders to itself
    said = docker_repro(commit)
    assert "test accuracy" in said
    return commit


def docker_repro(folder: Path, *arguments: str) -> str:
    """`make docker-repro` as the foreign uid; the image itself is built already."""
    return docker.make(folder, "-o", "image", "docker-repro", f"ARGS={' '.join(arguments)}", USER_ID=f"{FOREIGN}:{FOREIGN}")


def test_the_users_own_checkout_stays_the_users(mounted: Path) -> None:
    strangers = [path for path in mounted.rglob("*") if path.lstat().st_uid != FOREIGN]
    assert strangers == []
    safe = ("-c", f"safe.directory={mounted}")
    status = {line[3:] for line in call(mounted, "git", *safe, "status", "--porcelain").splitlines()}
    assert status - set(docker.CANARIES) == {"dvc.lock", "metrics/", "plots/"}


def test_its_run_is_found_and_opened_outside(mounted: Path) -> None:
    store = f"sqlite:///{mounted / 'mlflow.db'}"
    (found,) = runs(store)
    safe = ("-c", f"safe.directory={mounted}")
    assert found.data.tags["mlflow.source.git.commit"] == call(mounted, "git", *safe, "rev-parse", "HEAD").strip()
    assert found.data.tags["pipeline.model_sha256"] == files.digest(mounted / MODEL)
    assert found.data.tags["pipeline.image.digest"].startswith("sha256:")
    (model,) = found.outputs.model_outputs
    for address in (found.info.artifact_uri, client(store).get_logged_model(model.model_id).artifact_location):
        folder = Path(unquote(urlsplit(address).path))
        assert folder.is_relative_to(mounted)
        assert [path for path in folder.rglob("*") if path.is_file() and path.read_bytes()], address


def test_a_second_one_runs_nothing_and_an_experiment_runs(mounted: Path) -> None:
    assert "Data and pipelines are up to date" in docker_repro(mounted)
    call(mounted, *GIT, "-c", f"safe.directory={mounted}", "add", "-A")
    call(mounted, *GIT, "-c", f"safe.directory={mounted}", "commit", "-qm", "results")
    for path in (mounted / ".git").rglob("*"):
        os.chown(path, FOREIGN, FOREIGN)
    said = docker_repro(mounted, "dvc", "exp", "run", "--name", "wider", "-S", "model.width=20")
    assert "Ran experiment(s): wider" in said
    assert "wider" in docker_repro(mounted, "dvc", "exp", "list")
