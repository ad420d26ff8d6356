"""Interrupt real `dvc repro` runs: `python -m tests.faults.signals 20 [TARGET ...]` sends 20 signals to each target."""

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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from pipeline.core import files
from tests import project
from tests.faults.killing import CHANGES
from tests.project import RESULTS
from tests.repository import call, repository, variables

STEPS = 1200
VARIABLES = {"PIPELINE_TRACKING": "false", "PIPELINE_THREADS": "1", "PIPELINE_DEVICE": "cpu", "PIPELINE_CHECKPOINT_EVERY_STEPS": "10"}
COMMAND = "dvc repro train; exit $?"
LIMIT_S = 300.0
SAID = re.compile(r"step (\d+) is saved")


@dataclass
class Repro:
    """One `dvc repro` in a new session, started by a shell, as at a terminal."""

    folder: Path
    wrapper: tuple[str, ...] = ()
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        with (self.folder / "log").open("wb") as log:
            self.shell = subprocess.Popen(
                [*self.wrapper, "sh", "-c", COMMAND],
                cwd=self.folder,
                env=variables(**VARIABLES),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def processes(self) -> list[psutil.Process]:
        """Return all processes whose working directory is the project's folder."""
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

    def wait_for(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < end, (self.folder / "log").read_text()
            time.sleep(0.02)

    def wait_until_it_trains(self, pause_s: float) -> bool:
        """Wait for the first new checkpoint and `pause_s` more; return False if the training has ended."""
        seen = self.saved()
        self.wait_for(lambda: self.saved() - seen or self.shell.poll() is not None)
        time.sleep(pause_s)
        return self.trainer() is not None

    def saved(self) -> set[Path]:
        return set(self.folder.glob(".pipeline/work/*/step-*.safetensors"))

    def text(self) -> str:
        return (self.folder / "log").read_text()


def to_trainer(repro: Repro, number: int) -> None:
    process = repro.trainer()
    assert process
    process.send_signal(number)


def to_group(repro: Repro, number: int) -> None:
    os.killpg(repro.shell.pid, number)


def to_dvc(repro: Repro, number: int) -> None:
    process = repro.find("dvc", "repro")
    assert process
    process.send_signal(number)


def to_shell(repro: Repro, number: int) -> None:
    repro.shell.send_signal(number)


def to_process_one(repro: Repro, number: int) -> None:
    """Signal process 1 of a PID namespace, which receives only the signals that it handles; then kill it, as `docker stop` does."""
    one = psutil.Process(repro.shell.pid).children()[0]
    one.send_signal(number)
    time.sleep(0.5)
    with contextlib.suppress(psutil.Error):
        one.kill()


@dataclass(frozen=True)
class Target:
    send: Callable[[Repro, int], None]
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
    repro = Repro(folder, target.wrapper)
    if not repro.wait_until_it_trains(pause_s):
        return False
    numbers = [process.pid for process in repro.processes()]
    target.send(repro, target.number)
    repro.wait_for(lambda: not repro.processes())
    repro.shell.wait()
    # DVC takes a process for alive until its parent has asked for its exit code, and process 1 may take its time for that
    repro.wait_for(lambda: not any(map(psutil.pid_exists, numbers)))
    if target.ends:
        assert repro.shell.returncode != 0, "an interrupted run must not look like a success"
        assert not (folder / RESULTS[0]).exists(), repro.text()
    if target.saves and target.ends:
        assert SAID.search(repro.text()), repro.text()
    if target.check:
        call(folder, "python", "-m", "pipeline", "check", **VARIABLES)
    return True


def differences(folder: Path, whole: Path) -> list[str]:
    return [f"{folder.name}: {path}" for path in RESULTS if files.digest(folder / path) != files.digest(whole / path)]


def campaign(checkout: Path, whole: Path, folder: Path, target: Target, rounds: int) -> tuple[int, list[str]]:
    """Return the number of signals that interrupted a training, and the results that differ from those of an undisturbed one."""
    shutil.copytree(checkout, folder)
    sent, other = 0, []
    for _ in range(rounds):
        sent += interrupt(folder, target, random.uniform(0.0, 0.3))
        if not target.ends:  # it went on to its end all the same: another one from the start
            other += differences(folder, whole)
            shutil.rmtree(folder)
            shutil.copytree(checkout, folder)
    call(folder, "dvc", "repro", "train", **VARIABLES)
    return sent, other + differences(folder, whole)


def run(rounds: int, *names: str) -> dict[str, object]:
    """Interrupt the training of one project for each target `rounds` times and then finish it."""
    random.seed(7)
    begin, other, sent = time.monotonic(), [], {}
    with tempfile.TemporaryDirectory() as top:
        checkout, whole = repository(Path(top) / "checkout", CHANGES | {"train.steps": STEPS + 200 * rounds}), Path(top) / "whole"
        shutil.copytree(checkout, whole)
        project.run(whole, "prepare", "train", **VARIABLES)
        for name in names or TARGETS:
            sent[name], found = campaign(checkout, whole, Path(top) / name.replace(" ", "-").replace(",", ""), TARGETS[name], rounds)
            other += found
    return {"sent": sent, "other_digests": other, "seconds": round(time.monotonic() - begin)}


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), *sys.argv[2:])))
