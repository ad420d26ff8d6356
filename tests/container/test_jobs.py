"""Jobs of the image: without a mount, with few rights, in a mounted checkout, stopped and continued, and as the pods of deploy/kubernetes."""

import os
import random
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pytest

from pipeline.core import files
from tests.container import docker
from tests.container.docker import CANARY, HARDENED, HOME, clone, container, inspect, make_accessible, run, volume, wait_for_output
from tests.deploy.manifests import containers, pods
from tests.imports import TOP
from tests.repository import GIT, call, client, runs

pytestmark = pytest.mark.container

UNKNOWN_UID = 54321
"""A uid that neither this machine nor the image knows."""
STOP_WITHIN_S = 10
MODEL = "models/model.safetensors"
SHORT = ("repro", "-S", "train.epochs=1")


class Job(NamedTuple):
    output: str
    folder: Path


@pytest.fixture(scope="module")
def default(image: str, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Return the job of `docker run IMAGE` without a mount, with secrets in its environment."""
    secrets = [word for name in ("MLFLOW_TRACKING_TOKEN", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD") for word in ("--env", f"{name}={CANARY}")]
    folder = tmp_path_factory.mktemp("default")
    with container(*secrets, image) as name:
        assert docker.docker("wait", name).strip() == "0", docker.docker("logs", name)
        docker.docker("cp", f"{name}:{HOME}", str(folder))
        return Job(docker.docker("logs", name), folder / "pipeline")


def in_volume(name: str, image: str, program: str, *words: str) -> str:
    """Return the output of a program that runs in the volume of a job."""
    return run("--volume", f"{name}:{HOME}", "--workdir", HOME, "--entrypoint", program, image, *words)


def test_the_main_job_ends_with_the_accuracy_and_the_remark_that_its_results_are_not_kept(default: Job) -> None:
    assert default.output.count("test accuracy") == 1
    *_, accuracy, model, last = default.output.splitlines()
    assert re.match(r"test accuracy 0\.9[5-9]\d\d ", accuracy)
    assert model.startswith("model: ")
    assert (
        last == f"container: {HOME} is deleted with this container: add `-v NAME:{HOME}` to keep the results (docs/container.md, Results)"
    )


def test_no_secret_is_printed_or_written(default: Job) -> None:
    assert CANARY not in default.output
    assert [path for path in default.folder.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()] == []


def test_the_revision_of_the_image_is_the_commit_of_the_run(default: Job, image: str) -> None:
    (found,) = runs(f"sqlite:///{default.folder / 'mlflow.db'}")
    assert found.data.tags["mlflow.source.git.commit"] == inspect(image)["Config"]["Labels"]["org.opencontainers.image.revision"]


def test_all_hardened_flags_together_and_any_uid(image: str) -> None:
    *_, accuracy, _, last = run(*HARDENED, "--user", f"{UNKNOWN_UID}:{UNKNOWN_UID}", image, *SHORT).splitlines()
    assert accuracy.startswith("test accuracy")
    assert last.startswith(f"container: /tmp/pipeline is deleted with this container: add `-v NAME:{HOME}` to keep the results")


def test_a_volume_keeps_parameters_and_results_and_train_compile_works(image: str) -> None:
    with volume() as name:
        run("--volume", f"{name}:{HOME}", image, "check")
        in_volume(name, image, "sed", "-i", "s/compile: .*/compile: default/; s/epochs: .*/epochs: 1/", "params.yaml")
        output = run("--volume", f"{name}:{HOME}", image)
        assert f"container: {HOME}/params.yaml was edited: it is kept as it is" in output
        assert "test accuracy" in output
        assert f"container: {HOME} is mounted and keeps the results (docs/container.md, Results)" in output
        documented = f"tar -c -C {HOME} models metrics plots | tar -t"
        assert {MODEL, "metrics/evaluate.json", "plots/evaluate/confusion.png"} <= set(
            in_volume(name, image, "sh", "-c", documented).split()
        )
        assert in_volume(name, image, "grep", "-aEo", r'compile[\\":]+default', MODEL)


def test_two_processes_train_under_all_hardened_flags_to_the_bytes_of_one(image: str) -> None:
    with volume() as name:
        job = (*HARDENED, "--volume", f"{name}:{HOME}")
        output = run(*job, "--env", "PIPELINE_PROCESSES=2", image, *SHORT, "-S", "train.lanes=2")
        assert re.search(r"check: .*, in 2 processes", output)
        assert "test accuracy" in output
        model = in_volume(name, image, "sha256sum", MODEL)
        run(*job, image, "dvc", "repro", "--force", "--single-item", "train")
        assert in_volume(name, image, "sha256sum", MODEL) == model


def test_a_verb_runs_and_the_error_for_an_unknown_one_lists_all(image: str) -> None:
    assert "check: params.yaml is valid" in run(*HARDENED, image, "check")
    output = run(image, "trian", code=2)
    assert output.startswith("error: there is no verb 'trian'")
    words = ("repro", "prepare", "train", "evaluate", "check", "verify", "dvc", "mlflow", "torchrun")
    assert all(word in output for word in words)
    assert all(word in run(*HARDENED, image, "--help") for word in words)
    assert "usage: python -m pipeline repro" in run(*HARDENED, image, "repro", "--help")


def test_a_checkout_that_cannot_be_written_is_copied_with_a_message(image: str, tmp_path: Path) -> None:
    folder = clone(tmp_path / "theirs")
    make_accessible(folder)
    output = run("--user", f"{UNKNOWN_UID}:{UNKNOWN_UID}", "--volume", f"{folder}:{folder}:ro", "--workdir", str(folder), image, "check")
    assert (
        f"container: uid {UNKNOWN_UID} cannot write in {folder}: this job runs in a copy, {HOME}; mount it without `:ro` to run there"
        in output
    )
    output = run("--user", f"{UNKNOWN_UID}:{UNKNOWN_UID}", "--volume", f"{folder}:{folder}", "--workdir", str(folder), image, "check")
    assert (
        f"container: uid {UNKNOWN_UID} cannot write in {folder}: this job runs in a copy, {HOME}; add `--user $(id -u):$(id -g)` to run there"
        in output
    )


def test_a_second_container_on_one_volume_is_refused_and_the_first_succeeds(image: str) -> None:
    with volume() as name:
        words = ("--volume", f"{name}:{HOME}", image)
        with container(*words, *SHORT) as first:
            wait_for_output(first, "Running stage")
            output = run(*words, code=69)
            holder = f"a job in a container (host name {inspect(first)['Id'][:12]})"
            assert f"error: {HOME}: {holder} is using this checkout: wait until it ends" in output
            assert "mlflow, version" in run(*words, "mlflow", "--version"), "verbs that run no DVC do not wait"
            assert docker.docker("wait", first).strip() == "0", docker.docker("logs", first)


def test_a_kill_for_the_memory_limit_is_reported(image: str) -> None:
    output = run("--memory", "150m", image, "check", code=137)
    assert "container: the OOM killer killed a process of this container: raise its memory limit" in output


def test_a_mounted_parameter_file_is_used_and_not_replaced(image: str, tmp_path: Path) -> None:
    text = (TOP / "params.yaml").read_text(encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(text + "# mine\n", encoding="utf-8")
    make_accessible(tmp_path / "mine.yaml")
    words = ("--volume", f"{tmp_path / 'mine.yaml'}:{HOME}/params.yaml", image)
    assert f"{HOME}/params.yaml was edited: it is kept as it is" in run(*words, "check")
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    output = run(*words, "set", "preset=cifar10-resnet", code=2)
    assert "error: params.yaml: cannot be replaced, because it is a mount point or belongs to another user" in output


def test_a_container_without_a_writable_folder_is_refused_with_the_remedy(image: str, tmp_path: Path) -> None:
    assert "add `--tmpfs /tmp`" in run("--read-only", image, "check", code=2)
    tmp_path.chmod(0o700)
    output = run("--user", f"{UNKNOWN_UID}:{UNKNOWN_UID}", "--volume", f"{tmp_path}:{HOME}", image, "check", code=2)
    assert f"{HOME} is mounted and belongs to 0:0; uid {UNKNOWN_UID} cannot write there: add `--user 0:0`" in output
    output = run("--volume", f"{tmp_path}:{HOME}:ro", image, "check", code=2)
    assert f"{HOME} is mounted read-only, and a job writes there: mount it without `:ro`" in output


def test_a_job_that_was_stopped_continues_to_the_same_bytes(image: str, default: Job) -> None:
    with volume() as name:
        words = ("--volume", f"{name}:{HOME}", "--env", "PIPELINE_CHECKPOINT_EVERY_S=1", image)
        with container(*words) as first:
            wait_for_output(first, "train: step 50 ")
            with training_paused(first):
                wait_until_tracked(first)
            time.sleep(random.uniform(0, 0.5))
            begin = time.monotonic()
            docker.docker("stop", "--time", str(STOP_WITHIN_S), first)
            took_s = time.monotonic() - begin
            state, output = inspect(first)["State"], docker.docker("logs", first)
        assert state["ExitCode"] == 143, output
        assert took_s < STOP_WITHIN_S, output
        assert re.search(r"step \d+ is saved", output)
        again = run(*words)
        assert re.search(r"train: .* resuming after step \d+", again), again
        assert "test accuracy" in again
        assert in_volume(name, image, "python", "-c", STATUS).split() == ["FINISHED"]
        assert in_volume(name, image, "sha256sum", MODEL).split()[0] == files.digest(default.folder / MODEL)


@contextmanager
def training_paused(name: str) -> Iterator[None]:
    """Pause the container's training within the block, so that it cannot end before the test continues."""
    assert python_in(name, SIGNAL, "SIGSTOP") == "sent\n", docker.docker("logs", name)
    yield
    assert python_in(name, SIGNAL, "SIGCONT") == "sent\n"


SIGNAL = r"""
import contextlib, os, pathlib, signal, sys
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    with contextlib.suppress(OSError):  # the process has ended
        if (folder / "cmdline").read_bytes().endswith(b"-m\0pipeline\0train\0"):
            os.kill(int(folder.name), signal.Signals[sys.argv[1]])
            print("sent")
"""


def python_in(name: str, program: str, *words: str) -> str:
    """Return the output of a Python program that runs in the container beside its job."""
    command = [docker.DOCKER, "exec", "--workdir", HOME, name, "python", "-c", program, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=docker.TIMEOUT_S).stdout


def wait_until_tracked(name: str) -> None:
    """Wait until MLflow has the run: a mirror that is still importing MLflow when the job stops leaves it to the next start."""
    for _ in range(200):
        if python_in(name, STATUS).split() == ["RUNNING"]:
            return
        time.sleep(0.3)
    raise AssertionError(docker.docker("logs", name))


STATUS = """
import sqlite3
store = sqlite3.connect("file:mlflow.db?mode=ro", uri=True)  # does not create the file
print(*[status for (status,) in store.execute("select status from runs")])
"""


@pytest.fixture(scope="module")
def mounted(image: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkout of an unknown uid, after `make docker-repro`."""
    assert image
    if os.geteuid() != 0:
        pytest.skip("only root can make a checkout of another user")
    folder = clone(tmp_path_factory.mktemp("mounted") / "pipeline project")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, UNKNOWN_UID, UNKNOWN_UID, follow_symlinks=False)
    make_accessible(folder)
    assert "test accuracy" in docker_repro(folder)
    return folder


def docker_repro(folder: Path, *arguments: str) -> str:
    """Run `make docker-repro` as the unknown uid, without building the image again; return its output."""
    settings = {"USER_ID": f"{UNKNOWN_UID}:{UNKNOWN_UID}", "RUN_ARGS": " ".join(docker.ONE_THREAD)}
    return docker.make(folder, "-o", "image", "docker-repro", f"ARGS={' '.join(arguments)}", **settings)


def test_files_in_the_users_checkout_belong_to_the_user(mounted: Path) -> None:
    of_others = [path for path in mounted.rglob("*") if path.lstat().st_uid != UNKNOWN_UID]
    assert of_others == []
    safe = ("-c", f"safe.directory={mounted}")
    status = {line[3:] for line in call(mounted, "git", *safe, "status", "--porcelain").splitlines()}
    assert status == {"dvc.lock", "metrics/", "plots/"}


def test_a_run_in_a_checkout_can_be_opened_outside_the_container(mounted: Path) -> None:
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


def test_a_second_repro_runs_no_stage_and_an_experiment_runs(mounted: Path) -> None:
    assert "Data and pipelines are up to date" in docker_repro(mounted)
    call(mounted, *GIT, "-c", f"safe.directory={mounted}", "add", "-A")
    call(mounted, *GIT, "-c", f"safe.directory={mounted}", "commit", "-qm", "results")
    for path in (mounted / ".git").rglob("*"):
        os.chown(path, UNKNOWN_UID, UNKNOWN_UID)
    output = docker_repro(mounted, "dvc", "exp", "run", "--name", "wider", "-S", "model.width=20")
    assert "Ran experiment(s): wider" in output
    assert "wider" in docker_repro(mounted, "dvc", "exp", "list")


ALONE = {"--nnodes": "1", "--nproc-per-node": "2", "--rdzv-endpoint": "localhost:29400"}
"""The options of torchrun that are different where there is one machine and no GPU."""


def flags(pod: dict[str, Any], container: dict[str, Any], claim: str) -> list[str]:
    """Return the options of `docker run` that mean what the pod says; `claim` is the volume instead of the claim.

    The network is Docker's own, because torchrun needs a host name that resolves: as in a pod, it is in /etc/hosts.
    """
    security, rights = pod["securityContext"], container["securityContext"]
    words = ["--user", f"{security['runAsUser']}:{security['runAsGroup']}"]
    words += ["--read-only"] if rights["readOnlyRootFilesystem"] else []
    words += [] if rights["allowPrivilegeEscalation"] else ["--security-opt", "no-new-privileges"]
    words += [word for name in rights["capabilities"]["drop"] for word in ("--cap-drop", name)]
    claims = {entry["name"] for entry in pod["volumes"] if "persistentVolumeClaim" in entry}
    for mount in container["volumeMounts"]:
        path = mount["mountPath"]
        words += ["--volume", f"{claim}:{path}"] if mount["name"] in claims else ["--tmpfs", f"{path}:exec"]
    values = {entry["name"]: entry["value"] for entry in container.get("env", []) if "value" in entry}
    return [*words, *(word for name, value in values.items() for word in ("--env", f"{name}={value}")), *docker.ONE_THREAD]


def on_one_machine(arguments: list[str]) -> list[str]:
    return [f"{name}={ALONE[name]}" if (name := word.partition("=")[0]) in ALONE else word for word in arguments]


def test_the_three_jobs_for_several_machines_prepare_train_and_evaluate_on_one_volume(image: str) -> None:
    output = {}
    with volume() as claim:
        for name in ("pipeline-prepare", "pipeline-train", "pipeline-evaluate"):
            for container in containers(pod := pods()[name]):
                output[container["name"]] = run(*flags(pod, container, claim), image, *on_one_machine(container.get("args", [])))
    assert list(output) == ["check", "prepare", "train", "commit", "evaluate"]
    assert "prepare: train: " in output["prepare"]
    assert "train: step " in output["train"]
    assert "Stage 'train' didn't change, skipping" in output["evaluate"]
    assert "test accuracy" in output["evaluate"]


def test_the_job_for_one_machine_runs_everything(image: str) -> None:
    (container,) = containers(pod := pods()["pipeline"])
    with volume() as claim:
        assert "test accuracy" in run(*flags(pod, container, claim), image, *container.get("args", []))


def test_a_volume_for_raw_data_can_be_filled_by_any_user(image: str) -> None:
    with volume() as name:
        words = ("--volume", f"{name}:{HOME}/data/raw", "--user", f"{UNKNOWN_UID}:{UNKNOWN_UID}")
        assert "params.yaml is valid" in run(*words, image, "check")
        run(*words, "--entrypoint", "touch", image, f"{HOME}/data/raw/x")


def test_a_job_counts_the_cpus_of_its_quota(image: str) -> None:
    program = "from pipeline.core import limits; print(limits.usable_cpus())"
    assert run("--cpus", "1", "--entrypoint", "python", image, "-c", program) == "1\n"
