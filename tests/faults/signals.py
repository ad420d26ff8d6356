"""Jobs in a checkout that are signalled: `python -m tests.faults.signals 20 [TARGET ...]` sends 20 signals to each target."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests import project
from tests.faults.killing import CHANGES
from tests.forking import wait_until
from tests.project import RESULTS, digests
from tests.repository import call, repository, variables

STEPS = 1200
VARIABLES = {"PIPELINE_TRACKING": "false", "PIPELINE_THREADS": "1", "PIPELINE_DEVICE": "cpu", "PIPELINE_CHECKPOINT_EVERY_STEPS": "10"}
SHELL = ("sh", "-c", "dvc repro train; exit $?")
LIMIT_S = 300.0


class Job:
    """A command in a new session. It writes to a file, because a training that outlives its DVC would fail on a closed pipe."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.folder = folder
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the job
        self.process = subprocess.Popen(
            command, cwd=folder, env=variables(**VARIABLES), stdout=self.log, stderr=self.log, start_new_session=True
        )

    @property
    def said(self) -> str:
        return os.pread(self.log.fileno(), 10**7, 0).decode()

    def end(self) -> int:
        return self.process.wait(LIMIT_S)

    def __del__(self) -> None:
        self.log.close()

    def processes(self) -> list[psutil.Process]:
        """Return all processes whose working directory is that of the job."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(self.folder.resolve()):
                    found.append(process)
        return found

    def find(self, *words: str) -> psutil.Process | None:
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                line = process.cmdline()
                if all(any(part.endswith(word) for part in line) for word in words) and line[0] != "sh":
                    return process
        return None

    def trainer(self) -> psutil.Process | None:
        return self.find("-m", "pipeline", "train")

    def trains(self) -> bool:
        """Wait for the first new checkpoint; return False if the training has ended."""
        pattern = ".pipeline/work/*/step-*.safetensors"
        seen = set(self.folder.glob(pattern))
        wait_until(lambda: set(self.folder.glob(pattern)) - seen or self.process.poll() is not None)
        return self.process.poll() is None


@contextlib.contextmanager
def in_the_middle(folder: Path, *command: str) -> Iterator[Job]:
    """Run the command and enter the block once its training has written a checkpoint."""
    job = Job(folder, *command)
    try:
        assert job.trains(), job.said
        yield job
    finally:
        job.process.kill()
        job.end()


def to_trainer(job: Job, number: int) -> None:
    process = job.trainer()
    assert process
    process.send_signal(number)


def to_group(job: Job, number: int) -> None:
    os.killpg(job.process.pid, number)


def to_dvc(job: Job, number: int) -> None:
    process = job.find("dvc", "repro")
    assert process
    process.send_signal(number)


def to_shell(job: Job, number: int) -> None:
    job.process.send_signal(number)


def to_process_one(job: Job, number: int) -> None:
    """Signal process 1 of a PID namespace, which receives only the signals that it handles; then kill it, as `docker stop` does."""
    one = psutil.Process(job.process.pid).children()[0]
    one.send_signal(number)
    time.sleep(0.5)
    with contextlib.suppress(psutil.Error):
        one.kill()


@dataclass(frozen=True)
class Target:
    send: Callable[[Job, int], None]
    number: int = signal.SIGTERM
    wrapper: tuple[str, ...] = ()
    saves: bool = True
    """True if the current step is saved before the end."""
    check: bool = False
    """True if `python -m pipeline check`, which `make repro` runs first, must repair DVC's locks."""
    ends: bool = True
    """True if the training ends. A signal to the shell alone does not reach DVC and its stage."""


TARGETS = {
    "trainer": Target(to_trainer),
    "group": Target(to_group),
    "dvc": Target(to_dvc),
    "dvc, by SIGKILL": Target(to_dvc, signal.SIGKILL),
    "group, by SIGINT": Target(to_group, signal.SIGINT),
    "trainer, by SIGKILL": Target(to_trainer, signal.SIGKILL, saves=False),
    "shell": Target(to_shell, ends=False),
    "process 1": Target(to_process_one, wrapper=("unshare", "-pf", "--mount-proc"), saves=False, check=True),
}


def interrupt(folder: Path, target: Target, pause_s: float) -> bool:
    """Start a run, send the signal during its training and wait until no process is left; return False if the training ended before."""
    job = Job(folder, *target.wrapper, *SHELL)
    if not job.trains() or time.sleep(pause_s) or not job.trainer():
        return False
    numbers = [process.pid for process in job.processes()]
    target.send(job, target.number)
    wait_until(lambda: not job.processes())
    code = job.end()
    # DVC takes a process for alive until its parent has asked for its exit code, and process 1 may take its time for that
    wait_until(lambda: not any(map(psutil.pid_exists, numbers)))
    if target.ends:
        assert code != 0, "an interrupted run must not look like a success"
        assert not (folder / RESULTS[0]).exists(), job.said
        assert not target.saves or re.search(r"step (\d+) is saved", job.said), job.said
    if target.check:
        call(folder, "python", "-m", "pipeline", "check", **VARIABLES)
    return True


def campaign(checkout: Path, whole: Path, folder: Path, target: Target, rounds: int) -> tuple[int, int]:
    """Return the number of signals that interrupted a training, and how often the results differed from those of an undisturbed one."""
    shutil.copytree(checkout, folder)
    sent, other = 0, 0
    for _ in range(rounds):
        sent += interrupt(folder, target, random.uniform(0.0, 0.3))
        if not target.ends:  # it went on to its end all the same: another one from the start
            other += digests(folder) != digests(whole)
            shutil.rmtree(folder)
            shutil.copytree(checkout, folder)
    call(folder, "dvc", "repro", "train", **VARIABLES)
    return sent, other + (digests(folder) != digests(whole))


def run(rounds: int, *names: str) -> dict[str, tuple[int, int]]:
    """Interrupt the training of one project for each target `rounds` times and then finish it."""
    random.seed(7)
    with tempfile.TemporaryDirectory() as top:
        checkout, whole = repository(Path(top) / "checkout", CHANGES | {"train.steps": STEPS + 200 * rounds}), Path(top) / "whole"
        shutil.copytree(checkout, whole)
        project.run(whole, "prepare", "train", **VARIABLES)
        return {name: campaign(checkout, whole, Path(top) / re.sub(r"\W+", "-", name), TARGETS[name], rounds) for name in names or TARGETS}


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), *sys.argv[2:])))
