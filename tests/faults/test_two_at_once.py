"""Two processes at once in one checkout, and a killed DVC: one works, the other says why it does not, and nothing needs cleaning by hand."""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from pipeline.__main__ import main
from tests.project import digests
from tests.repository import call, repository, variables

CHANGES = {"train.steps": 500, "train.report_every_steps": 50, "train.validate_every_steps": 250}
QUIETLY = {"PIPELINE_TRACKING": "false", "PIPELINE_THREADS": "1", "PIPELINE_CHECKPOINT_EVERY_STEPS": "10", "PIPELINE_DEVICE": "cpu"}
BUSY = "is busy, it is being blocked by"
TRAINS_ALREADY = "another process is training with the same inputs: wait for it, or stop it"
TRAIN = ("dvc", "repro", "--force", "--single-item", "train")
JOB = (sys.executable, "-m", "pipeline", "repro")
WITHIN_S = 300
pytestmark = pytest.mark.slow  # tests/tools/test_checkout_lock.py and tests/train/test_work_folder.py have the short forms


class Ended(NamedTuple):
    code: int
    said: str


class Command:
    """A command in the background. It writes to a file, because a training that outlives its DVC would fail on a closed pipe."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.output = tempfile.TemporaryFile()  # noqa: SIM115  # `end` closes it
        self.process = subprocess.Popen(
            command, cwd=folder, env=variables(**QUIETLY), stdout=self.output, stderr=self.output, start_new_session=True
        )

    def end(self) -> Ended:
        code = self.process.wait(WITHIN_S)
        with self.output:
            self.output.seek(0)
            return Ended(code, self.output.read().decode())


@contextmanager
def in_the_middle(folder: Path, *command: str) -> Iterator[Command]:
    """Run the command and enter the block once its training has written a checkpoint."""
    running = Command(folder, *command)
    try:
        deadline = time.monotonic() + WITHIN_S
        while not list((folder / ".pipeline/work").glob("*/step-*")):
            assert time.monotonic() < deadline
            assert running.process.poll() is None, running.end().said
            time.sleep(0.01)
        yield running
    finally:
        running.process.kill()
        running.process.wait(WITHIN_S)
        running.output.close()


def remains(folder: Path) -> list[Path]:
    """Return work folders, their locks and drafts."""
    return [*(folder / ".pipeline/work").iterdir(), *folder.rglob("*.draft")]


class Twins(NamedTuple):
    folder: Path
    first: Ended
    second: Ended
    digests: dict[str, str]


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Twins:
    """Return a checkout in which a second `dvc repro` was started while the training of the first one was paused."""
    folder = repository(tmp_path_factory.mktemp("twins"), CHANGES)
    with in_the_middle(folder, "dvc", "repro", "train") as first:
        children = psutil.Process(first.process.pid).children(recursive=True)
        trainer = next(child for child in children if child.cmdline()[-3:] == ["-m", "pipeline", "train"])
        trainer.suspend()
        second = Command(folder, "dvc", "repro", "train").end()
        trainer.resume()
        return Twins(folder, first.end(), second, digests(folder))


def test_of_two_repros_one_works_and_the_other_names_it(twins: Twins) -> None:
    assert twins.first.code == 0, twins.first.said
    assert twins.second.code != 0
    assert BUSY in twins.second.said
    assert remains(twins.folder) == []
    assert "Data and pipelines are up to date" in call(twins.folder, "dvc", "repro", "train", **QUIETLY)


def test_of_two_trainings_one_works_and_the_other_says_what_to_do(twins: Twins, monkeypatch, capsys) -> None:
    monkeypatch.chdir(twins.folder)
    for name, value in QUIETLY.items():
        monkeypatch.setenv(name, value)
    with in_the_middle(twins.folder, sys.executable, "-m", "pipeline", "train") as first:
        first.process.send_signal(signal.SIGSTOP)  # it does not end before the second has begun
        assert main(["train"]) == 69
        first.process.send_signal(signal.SIGCONT)
        assert TRAINS_ALREADY in capsys.readouterr().err
        assert first.end().code == 0
    assert digests(twins.folder) == twins.digests
    assert remains(twins.folder) == []


def test_a_job_whose_first_process_alone_is_ended_ends_dvc_too_and_resumes(twins: Twins, tmp_path: Path) -> None:
    folder = repository(tmp_path, CHANGES)
    with in_the_middle(folder, *JOB) as job:
        job.process.send_signal(signal.SIGTERM)
        assert job.end().code == 128 + signal.SIGTERM
    assert "resuming after step" in repeat(folder, *JOB)
    assert digests(folder) == twins.digests


def test_after_a_killed_dvc_the_same_command_ends_in_the_same_bytes(twins: Twins) -> None:
    with in_the_middle(twins.folder, *TRAIN) as dvc:
        dvc.process.kill()
        dvc.process.wait(WITHIN_S)
        # as a kill in the middle of its own writing leaves it
        (twins.folder / ".dvc/tmp/rwlock").write_text('{"read": {"/x', encoding="utf-8")
        refused = Command(twins.folder, *TRAIN).end()
        assert refused.code == 255
        assert "JSON structure is corrupted" in refused.said, "where DVC mends this itself, check need not"
        assert "was truncated by a DVC that was killed" in call(twins.folder, "python", "-m", "pipeline", "check", **QUIETLY)
        repeat(twins.folder, *TRAIN)
    assert digests(twins.folder) == twins.digests
    assert remains(twins.folder) == []


def repeat(folder: Path, *command: str) -> str:
    """Repeat the command until the training of the killed DVC has ended, and return its output."""
    deadline = time.monotonic() + WITHIN_S
    end = Command(folder, *command).end()
    while end.code and TRAINS_ALREADY in end.said and time.monotonic() < deadline:
        end = Command(folder, *command).end()
    assert end.code == 0, end.said
    return end.said
