"""The image as people run it: with no mount, hardened, on their own checkout, and stopped in the middle."""

import os
import random
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pytest

from pipeline.io import files
from tests.container import docker
from tests.container.docker import CANARY, HARDENED, HOME, clone, container, inspect, let_others_in, run, volume, wait_until_said
from tests.imports import TOP
from tests.repository import GIT, call, client, runs

pytestmark = pytest.mark.container

FOREIGN = 54321
"""A uid that neither this machine nor the image knows."""
STOP_WITHIN_S = 10
MODEL = "models/model.safetensors"


class Default(NamedTuple):
    said: str
    folder: Path


@pytest.fixture(scope="module")
def default(image: str, tmp_path_factory: pytest.TempPathFactory) -> Default:
    """`docker run IMAGE` with no mount, with secrets in its environment."""
    secrets = [word for name in ("MLFLOW_TRACKING_TOKEN", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD") for word in ("--env", f"{name}={CANARY}")]
    folder = tmp_path_factory.mktemp("default")
    with container(*secrets, image) as name:
        assert docker.docker("wait", name).strip() == "0", docker.docker("logs", name)
        docker.docker("cp", f"{name}:{HOME}", str(folder))
        return Default(docker.docker("logs", name), folder / "pipeline")


def in_volume(name: str, image: str, program: str, *words: str) -> str:
    """What a program says of a volume, run where a job keeps it."""
    return run("--volume", f"{name}:{HOME}", "--workdir", HOME, "--entrypoint", program, image, *words)


def test_the_main_job_ends_in_the_accuracy_and_says_where_the_model_is(default: Default) -> None:
    assert default.said.count("test accuracy") == 1
    *_, accuracy, model, last = default.said.splitlines()
    assert re.match(r"test accuracy 0\.9[5-9]\d\d ", accuracy)
    assert model.startswith("model: ")
    assert re.match(rf"container: the model is in this container: docker cp [0-9a-f]{{12}}:{HOME}/{MODEL} \. gets it", last)


def test_no_secret_is_said_or_written(default: Default) -> None:
    assert CANARY not in default.said
    assert [path for path in default.folder.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()] == []


def test_the_revision_of_the_image_is_the_commit_of_the_run(default: Default, image: str) -> None:
    (found,) = runs(f"sqlite:///{default.folder / 'mlflow.db'}")
    assert found.data.tags["mlflow.source.git.commit"] == inspect(image)["Config"]["Labels"]["org.opencontainers.image.revision"]


def test_all_hardened_flags_together_and_any_uid(image: str) -> None:
    *_, accuracy, _, last = run(*HARDENED, "--user", f"{FOREIGN}:{FOREIGN}", image).splitlines()
    assert accuracy.startswith("test accuracy")
    assert last == f"container: the model goes with this container, whose /tmp is memory: -v NAME:{HOME} keeps it"


def test_parameters_in_a_volume_are_kept_and_the_compiler_finds_what_it_needs(image: str) -> None:
    with volume() as name:
        run("--volume", f"{name}:{HOME}", image, "check")
        in_volume(name, image, "sed", "-i", "s/compile: .*/compile: default/; s/epochs: .*/epochs: 1/", "params.yaml")
        said = run("--volume", f"{name}:{HOME}", image)
        packed = f"docker run --rm -v {name}:{HOME} --entrypoint tar IMAGE -c -C {HOME} models metrics plots | tar -x"
        assert f"container: {HOME}/params.yaml was changed by hand: it stays as it is" in said
        assert "test accuracy" in said
        assert f"container: the model is in the volume {name}: {packed} gets it, with its figures" in said
        assert in_volume(name, image, "grep", "-aEo", r'compile[\\":]+default', MODEL)


def test_a_verb_runs_and_a_wrong_one_is_answered_with_all(image: str) -> None:
    assert "check: params.yaml is fine" in run(*HARDENED, image, "check")
    said = run(image, "trian", code=2)
    assert said.startswith("error: there is no verb 'trian'")
    words = ("repro", "prepare", "train", "evaluate", "check", "verify", "dvc", "mlflow")
    assert all(word in said for word in words)
    assert all(word in run(*HARDENED, image, "--help") for word in words)
    assert "usage: python -m pipeline repro" in run(*HARDENED, image, "repro", "--help")


def test_a_verb_that_misses_results_is_told_how_they_are_kept(image: str) -> None:
    said = run(image, "summary", code=2)
    assert said.splitlines()[-1] == f"container: {HOME} is new in each container: -v NAME:{HOME} keeps what a job makes for the next"


def test_a_checkout_that_cannot_be_written_is_copied_and_that_is_said(image: str, tmp_path: Path) -> None:
    folder = clone(tmp_path / "theirs")
    let_others_in(folder)
    said = run("--user", f"{FOREIGN}:{FOREIGN}", "--volume", f"{folder}:{folder}:ro", "--workdir", str(folder), image, "check")
    assert f"container: uid {FOREIGN} cannot write in {folder}: this runs in a copy, {HOME}; mount it without `:ro`" in said
    said = run("--user", f"{FOREIGN}:{FOREIGN}", "--volume", f"{folder}:{folder}", "--workdir", str(folder), image, "check")
    assert f"container: uid {FOREIGN} cannot write in {folder}: this runs in a copy, {HOME}; add `--user" in said


def test_a_checkout_that_was_mounted_and_not_named_is_refused(image: str, tmp_path: Path) -> None:
    folder = clone(tmp_path / "theirs")
    let_others_in(folder)
    said = run("--volume", f"{folder}:/workspace", image, "check", code=2)
    assert "/workspace is a checkout, but the job would run the image's code: add `-w /workspace`" in said


def test_another_lock_over_the_images_is_refused(image: str, tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("torch==1\n", encoding="utf-8")
    (tmp_path / "lock").chmod(0o644)
    let_others_in(tmp_path / "lock")
    said = run("--volume", f"{tmp_path / 'lock'}:/opt/pipeline/requirements.lock:ro", image, "check", code=2)
    assert "/opt/pipeline/requirements.lock is not the lock that this image was built from" in said


def test_a_second_container_on_one_volume_is_refused_and_the_first_ends_well(image: str) -> None:
    with volume() as name:
        words = ("--volume", f"{name}:{HOME}", image)
        with container(*words) as first:
            wait_until_said(first, "Running stage")
            said = run(*words, code=2)
            assert f"error: {HOME}: a job in the container {inspect(first)['Id'][:12]} is using this checkout: wait until it ends" in said
            assert "mlflow, version" in run(*words, "mlflow", "--version"), "what runs no DVC is free to look on"
            assert docker.docker("wait", first).strip() == "0", docker.docker("logs", first)


def test_a_quota_of_cpus_is_what_the_job_counts(image: str) -> None:
    program = "from pipeline.runtime import cgroup; print(cgroup.usable_cpus())"
    assert run("--cpus", "1", "--entrypoint", "python", image, "-c", program) == "1\n"


def test_a_memory_limit_that_killed_is_named(image: str) -> None:
    said = run("--memory", "150m", image, "check", code=137)
    assert "container: the kernel killed a process of this container, whose memory ran out: allow it more" in said


def test_a_volume_for_raw_data_can_be_filled_by_any_user(image: str) -> None:
    with volume() as name:
        words = ("--volume", f"{name}:{HOME}/data/raw", "--user", f"{FOREIGN}:{FOREIGN}")
        assert "params.yaml is fine" in run(*words, image, "check")
        run(*words, "--entrypoint", "touch", image, f"{HOME}/data/raw/x")


def test_a_mounted_parameter_file_is_used_and_not_replaced(image: str, tmp_path: Path) -> None:
    text = (TOP / "params.yaml").read_text(encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(text + "# mine\n", encoding="utf-8")
    let_others_in(tmp_path / "mine.yaml")
    words = ("--volume", f"{tmp_path / 'mine.yaml'}:{HOME}/params.yaml", image)
    assert f"{HOME}/params.yaml was changed by hand: it stays as it is" in run(*words, "check")
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    said = run(*words, "preset", "cifar10-resnet", code=2)
    assert "error: params.yaml: it is mounted, or belongs to another user, and cannot be replaced" in said


def test_a_place_that_cannot_be_written_is_refused_with_the_remedy(image: str, tmp_path: Path) -> None:
    assert "add `--tmpfs /tmp`" in run("--read-only", image, "check", code=2)
    tmp_path.chmod(0o700)
    said = run("--user", f"{FOREIGN}:{FOREIGN}", "--volume", f"{tmp_path}:{HOME}", image, "check", code=2)
    assert f"{HOME} is mounted and belongs to 0:0; uid {FOREIGN} cannot write there: add `--user 0:0`" in said


def test_stopped_in_the_middle_it_goes_on_to_the_same_bytes(image: str, default: Default) -> None:
    with volume() as name:
        words = ("--volume", f"{name}:{HOME}", "--env", "PIPELINE_CHECKPOINT_EVERY_S=1", image)
        with container(*words) as first:
            wait_until_said(first, "train: step 50 ")
            with held(first):
                wait_until_tracked(first)
            time.sleep(random.uniform(0, 0.5))
            begin = time.monotonic()
            docker.docker("stop", "--time", str(STOP_WITHIN_S), first)
            took_s = time.monotonic() - begin
            state, said = inspect(first)["State"], docker.docker("logs", first)
        assert state["ExitCode"] == 143, said
        assert took_s < STOP_WITHIN_S, said
        assert re.search(r"step \d+ is saved", said)
        assert in_volume(name, image, "python", "-c", STATUS).split() == ["KILLED"]
        again = run(*words)
        assert re.search(r"train: .* going on after step \d+", again), again
        assert "test accuracy" in again
        assert in_volume(name, image, "sha256sum", MODEL).split()[0] == files.digest(default.folder / MODEL)


@contextmanager
def held(name: str) -> Iterator[None]:
    """Within the block the container's training stands still: it might be at its end before all else is ready."""
    assert asked(name, SIGNAL, "SIGSTOP") == "sent\n", docker.docker("logs", name)
    yield
    assert asked(name, SIGNAL, "SIGCONT") == "sent\n"


SIGNAL = r"""
import contextlib, os, pathlib, signal, sys
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    with contextlib.suppress(OSError):  # some end meanwhile
        if (folder / "cmdline").read_bytes().endswith(b"-m\0pipeline\0train\0"):
            os.kill(int(folder.name), signal.Signals[sys.argv[1]])
            print("sent")
"""


def asked(name: str, program: str, *words: str) -> str:
    """What a program in Python says that runs in the container beside its job."""
    command = [docker.DOCKER, "exec", "--workdir", HOME, name, "python", "-c", program, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=docker.TIMEOUT_S).stdout


def wait_until_tracked(name: str) -> None:
    """A mirror that is still importing MLflow when the job is stopped leaves its run to the next start."""
    for _ in range(200):
        if asked(name, STATUS).split() == ["RUNNING"]:
            return
        time.sleep(0.3)
    raise AssertionError(docker.docker("logs", name))


STATUS = """
import sqlite3
store = sqlite3.connect("file:mlflow.db?mode=ro", uri=True)  # which makes none where there is none yet
print(*[status for (status,) in store.execute("select status from runs")])
"""


@pytest.fixture(scope="module")
def mounted(image: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout of a foreign uid, after `make docker-repro`."""
    assert image
    if os.geteuid() != 0:
        pytest.skip("only root can make a checkout that belongs to somebody else")
    folder = clone(tmp_path_factory.mktemp("mounted") / "pipeline project")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, FOREIGN, FOREIGN, follow_symlinks=False)
    let_others_in(folder)
    assert "test accuracy" in docker_repro(folder)
    return folder


def docker_repro(folder: Path, *arguments: str) -> str:
    """`make docker-repro` as the foreign uid; the image itself is built already."""
    settings = {"USER_ID": f"{FOREIGN}:{FOREIGN}", "RUN_ARGS": " ".join(docker.QUIETLY)}
    return docker.make(folder, "-o", "image", "docker-repro", f"ARGS={' '.join(arguments)}", **settings)


def test_the_users_own_checkout_stays_the_users(mounted: Path) -> None:
    strangers = [path for path in mounted.rglob("*") if path.lstat().st_uid != FOREIGN]
    assert strangers == []
    safe = ("-c", f"safe.directory={mounted}")
    status = {line[3:] for line in call(mounted, "git", *safe, "status", "--porcelain").splitlines()}
    assert status == {"dvc.lock", "metrics/", "plots/"}


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
