"""The Slurm script, run by bash with stand-ins for Slurm's commands."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.core import files
from tests import project
from tests.deploy import manifests
from tests.repository import call, repository

LOG = "calls.log"
"""A stand-in adds a line with its name and its arguments to this file."""
HEAD = f'#!/bin/bash\nprintf "%s %s\\n" "${{0##*/}}" "$*" >> "$SLURM_SUBMIT_DIR/{LOG}"\n'
SLURM = {
    "srun": 'while [[ $1 == -* ]]; do shift; done; echo $$ > "$SLURM_SUBMIT_DIR/task.pid"; exec "$@"',
    "scontrol": '[ "$1" = requeue ] || printf "node-1\\nnode-2\\n"',
    "scancel": 'kill -TERM "$(cat "$SLURM_SUBMIT_DIR/task.pid")"',
}
UNTIL_TERM = "trap 'echo saved; exit 1' TERM; touch begun; while :; do sleep 0.05; done"
TORCHRUN = "python -m pipeline.tools.torchrun "
PIPELINE = {
    "python": f'[[ "$*" != *torchrun* ]] || {{ [ ! -e broken ] || exit 9; [ ! -e long ] || {{ {UNTIL_TERM}; }}; }}',
    "dvc": 'case "$*" in "status "*) [ -e trained ];; "commit "*) touch trained;; "repro prepare") [ ! -e slow ] || exec bash -c "'
    + UNTIL_TERM
    + '";; esac',
}
JOB = {
    "SLURM_JOB_ID": "1234",
    "SLURM_JOB_NODELIST": "node-[1-2]",
    "SLURM_NNODES": "2",
    "SLURM_CPUS_PER_TASK": "8",
    "SLURM_GPUS_ON_NODE": "4",
}


def install(folder: Path, programs: dict[str, str]) -> Path:
    """Write the programs, and a `.venv` whose activation puts them first in PATH."""
    for name, text in programs.items():
        path = folder / "stand-ins" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{HEAD}{text}\n", encoding="utf-8")
        path.chmod(0o755)
    activate = folder / ".venv/bin/activate"
    activate.parent.mkdir(parents=True, exist_ok=True)
    activate.write_text(f"PATH='{folder}/stand-ins:{Path(sys.prefix) / 'bin'}':$PATH\n", encoding="utf-8")
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return install(tmp_path / "a checkout", SLURM | PIPELINE)


def submit(folder: Path, *words: str, **more: str) -> subprocess.Popen[str]:
    """Start the script as Slurm starts a batch script."""
    inherited = {name: value for name, value in os.environ.items() if name != "PIPELINE_THREADS"}
    return subprocess.Popen(
        ["bash", str(manifests.SLURM), *words],
        env={**inherited, **JOB, "SLURM_SUBMIT_DIR": str(folder), **more},
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGUSR1, signal.SIG_DFL),  # noqa: PLW1509  # a test may have left it ignored
    )


def run(folder: Path, *words: str, code: int = 0, **more: str) -> list[str]:
    """Run the script to its end and return the calls of the stand-ins."""
    output, _ = (process := submit(folder, *words, **more)).communicate(timeout=300)
    assert process.returncode == code, output
    return calls(folder)


def calls(folder: Path) -> list[str]:
    return (folder / LOG).read_text(encoding="utf-8").splitlines()


def create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def stopped_near_the_limit(checkout: Path, *saved: str) -> str:
    """Submit a job and send it the signal of the time limit, once its long command has begun and the files `saved` exist. Return its output."""
    process = submit(checkout)
    wait_for((checkout / "begun").exists, process)
    for path in saved:
        create(checkout / path)
    process.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 143, output
    return output


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)


def test_the_steps_run_in_order_and_torchrun_on_all_nodes(checkout: Path) -> None:
    found = run(checkout)
    (srun,) = [line for line in found if line.startswith("srun")]
    (torchrun,) = [line for line in found if line.startswith(TORCHRUN)]
    assert [line for line in found if line not in (srun, torchrun)] == [
        "python -m pipeline check",
        "dvc repro prepare",
        "dvc status --quiet train",
        "scontrol show hostnames node-[1-2]",
        "dvc commit --force train",
        "python -m pipeline repro",
    ]
    assert "--ntasks-per-node=1 --cpus-per-task=8 " in srun
    assert f" env PIPELINE_THREADS=2 {TORCHRUN}--nnodes=2 --nproc-per-node=4 " in srun
    assert "--rdzv-endpoint=node-1:21234 --rdzv-id=1234-0 " in torchrun
    assert found.index(torchrun) < found.index("dvc commit --force train")


def test_a_model_that_is_up_to_date_is_not_trained_again(checkout: Path) -> None:
    (checkout / "trained").touch()
    assert [line for line in run(checkout) if line.startswith(("srun", "dvc commit"))] == []


def test_a_job_near_its_time_limit_saves_and_is_queued_again(checkout: Path) -> None:
    for saved in ("data/prepared/spec.json", ".pipeline/work/KEY/step-000000000010.safetensors"):
        (checkout / "begun").unlink(missing_ok=True)
        (checkout / "long").touch()
        output = stopped_near_the_limit(checkout, saved)
        assert "saved" in output
        assert "job 1234 is queued again" in output
        assert calls(checkout)[-2:] == ["scancel --signal=TERM 1234", "scontrol requeue 1234"]


def test_a_job_that_saved_nothing_before_its_time_limit_is_not_queued_again(checkout: Path) -> None:
    for path in ("data/prepared/spec.json", ".pipeline/work/KEY/step-000000000010.safetensors", "models/model.safetensors"):
        create(checkout / path)  # by an earlier start
    (checkout / "long").touch()
    output = stopped_near_the_limit(checkout)
    assert "this start finished nothing that the next one could continue from: raise --time" in output
    assert calls(checkout)[-1] == "scancel --signal=TERM 1234"


def test_a_failed_training_is_not_queued_again_and_not_committed(checkout: Path) -> None:
    (checkout / "broken").touch()
    assert run(checkout, code=9)[-1].startswith(TORCHRUN)


def test_the_data_must_be_prepared_within_the_time_limit(checkout: Path) -> None:
    (checkout / "slow").touch()
    output = stopped_near_the_limit(checkout)
    assert "this start finished nothing" in output
    assert calls(checkout)[-1] == "dvc repro prepare"


def test_a_signal_between_two_steps_stops_the_next_one(checkout: Path) -> None:
    install(checkout, {"mkdir": '/bin/mkdir "$@"; kill -USR1 $PPID'})  # the script calls it before the first step
    (checkout / "slow").touch()
    assert "this start finished nothing" in submit(checkout).communicate(timeout=300)[0]


def test_a_task_of_an_array_trains_in_the_checkout_at_its_place(checkout: Path, tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("seed 1", "seed 2")]
    for place in places:
        place.mkdir()
    run(checkout, "../seed 1", "../seed 2", SLURM_ARRAY_TASK_ID="1")
    assert [(place / "trained").exists() for place in (*places, checkout)] == [False, True, False]
    process = submit(checkout, "../seed 1", "../seed 2", SLURM_ARRAY_TASK_ID="2")
    assert "there is no such argument: --array counts from 0" in process.communicate(timeout=300)[0]
    assert process.returncode != 0


def test_without_slurm_it_says_how_it_is_started(checkout: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    done = subprocess.run(["bash", str(manifests.SLURM)], env=environment, cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "start this script with sbatch" in done.stderr


def test_without_a_gpu_the_number_of_processes_is_asked_for(checkout: Path) -> None:
    process = submit(checkout, SLURM_GPUS_ON_NODE="")
    assert "without a GPU, set PROCESSES_PER_NODE" in process.communicate(timeout=300)[0]
    assert process.returncode != 0
    assert "--nproc-per-node=2 " in run(checkout, SLURM_GPUS_ON_NODE="", PROCESSES_PER_NODE="2")[-3]


def test_the_signal_comes_as_early_as_kubernetes_warns_and_leaves_time_for_the_save() -> None:
    text = manifests.SLURM.read_text(encoding="utf-8")
    (period,) = {pod["terminationGracePeriodSeconds"] for pod in manifests.pods().values()}
    assert f"#SBATCH --signal=B:USR1@{period}\n" in text
    assert f"--wait={period} " in text
    assert f"USR1 to this shell {period} s before" in text
    assert "#SBATCH --requeue\n" in text


@pytest.mark.slow
def test_real_stages_stopped_near_the_time_limit_end_in_the_bytes_of_a_plain_training(tmp_path: Path) -> None:
    changes = {"train.lanes": 2, "train.steps": 1000, "train.report_every_steps": 100, "train.validate_every_steps": 200}
    plain = project.run(project.make(tmp_path / "plain", changes), "prepare", "train")
    folder = repository(tmp_path / "slurm", changes)
    install(folder, SLURM)
    job = {"SLURM_NNODES": "1", "SLURM_GPUS_ON_NODE": "", "PROCESSES_PER_NODE": "2", "PIPELINE_THREADS": "1", "PIPELINE_TRACKING": "false"}
    job |= {"SLURM_JOB_ID": "98765"}
    (folder / "stand-ins/scontrol").write_text('#!/bin/bash\n[ "$1" = requeue ] || echo localhost\n', encoding="utf-8")
    process = submit(folder, **job)
    assert process.stdout
    head = []
    for line in process.stdout:
        head.append(line)
        if "train: step 200 " in line:
            process.send_signal(signal.SIGUSR1)
            break
    output = "".join(head) + process.communicate(timeout=300)[0]
    assert process.returncode == 143, output
    assert "is saved" in output, output
    process = submit(folder, **job, SLURM_RESTART_COUNT="1")
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 0, output
    assert "resuming after step" in output
    assert "test accuracy" in output
    model = "models/model.safetensors"
    assert files.digest(folder / model) == files.digest(plain / model)
    assert call(folder, "dvc", "status").strip().endswith("up to date.")
