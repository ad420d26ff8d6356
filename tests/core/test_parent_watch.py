"""A stage whose DVC is gone saves and ends, with any shells in between; a stage started by hand continues."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.imports import TOP

STAGE = """
import sys, time
from pipeline.core import interruption
with interruption.deferred() as interrupted:
    interruption.start()
    print("begun", flush=True)
    for _ in range(200):
        time.sleep(0.05)
        try:
            interrupted.pause()
        except interruption.Interrupted as end:
            print(f"ended with {end.exit_code}", flush=True)
            sys.exit(end.exit_code)
    print("never ended", flush=True)
"""
# what DVC does: a shell, with the name of the stage in the environment, waited for
DVC = """
import os, subprocess, sys
print(os.getpid(), flush=True)
subprocess.run(sys.argv[1], shell=True, env={**os.environ, **dict(pair.split("=") for pair in sys.argv[2:])})
"""


class Tree:
    """A process in place of DVC and, below it directly or in a shell, a stage that waits for its end, in one new process group."""

    def __init__(self, folder: Path, command: str, *variables: str) -> None:
        (folder / "stage.py").write_text(STAGE)
        self.log = folder / "log"
        command = command.format(stage=f"{sys.executable} {folder / 'stage.py'} > {self.log} 2>&1")
        environment = {name: value for name, value in os.environ.items() if name != "DVC_STAGE"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", DVC, command, *variables],
            cwd=TOP,
            env=environment | {"PYTHONPATH": str(TOP)},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.await_line("begun")

    def await_line(self, text: str, limit_s: float = 20) -> bool:
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if self.log.exists() and text in self.log.read_text():
                return True
            time.sleep(0.02)
        return False

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()


@pytest.fixture
def tree(tmp_path: Path):
    trees: list[Tree] = []

    def plant(command: str, *variables: str) -> Tree:
        trees.append(Tree(tmp_path, command, *variables))
        return trees[-1]

    yield plant
    for each in trees:
        each.close()


@pytest.mark.parametrize("command", ["exec {stage}", "sh -c '{stage}; true'; true"], ids=["direct", "two shells"])
def test_a_stage_ends_when_its_dvc_is_gone(tree, command: str) -> None:
    planted = tree(command, "DVC_STAGE=train")
    planted.process.kill()
    assert planted.await_line("ended with 143"), planted.log.read_text()
    assert "the process that started this stage has ended: stopping the stage" in planted.log.read_text()


def test_a_stage_ends_when_the_shell_between_is_gone(tree) -> None:
    planted = tree("echo $$ > {stage}.pid; {stage}; true".replace("{stage}.pid", "/dev/stdout"), "DVC_STAGE=train")
    assert planted.process.stdout
    planted.process.stdout.readline()
    os.kill(int(planted.process.stdout.readline()), signal.SIGKILL)
    assert planted.await_line("ended with 143")


def test_a_signal_to_the_whole_group_is_one_signal(tree) -> None:
    planted = tree("exec {stage}", "DVC_STAGE=train")
    os.killpg(planted.process.pid, signal.SIGINT)
    assert planted.await_line("ended with 130"), planted.log.read_text()


def test_a_trial_ends_when_its_search_is_gone(tree) -> None:
    planted = tree("exec {stage}", "PIPELINE_STARTED_BY_SEARCH=true")
    planted.process.kill()
    assert planted.await_line("ended with 143"), planted.log.read_text()


def test_a_stage_that_was_started_by_hand_lives_on(tree) -> None:
    planted = tree("exec {stage}", "ANOTHER=1")
    planted.process.kill()
    assert not planted.await_line("ended", limit_s=0.6)
