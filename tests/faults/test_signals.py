"""Real `dvc repro` runs that are interrupted, or two at once in one checkout: equal bytes, one works, and nothing needs cleaning by hand.

test_interrupting.py and tests/tools/test_supervision.py, test_checkout_lock.py and tests/train/test_work_folder.py have the short forms.
"""

import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from pipeline.__main__ import main
from tests.faults import signals
from tests.faults.signals import LIMIT_S, VARIABLES, Job, in_the_middle
from tests.forking import campaign
from tests.project import digests
from tests.repository import call, repository

pytestmark = pytest.mark.slow
CAN_UNSHARE = shutil.which("unshare") is not None and os.geteuid() == 0
AS_ROOT = pytest.mark.skipif(not CAN_UNSHARE, reason="only root can make a namespace")


@pytest.mark.parametrize("target", ["group", pytest.param("process 1", marks=AS_ROOT)])
def test_an_interrupted_repro_stops_its_stage_and_resumes_to_the_same_bytes(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.setattr(signals, "STEPS", 200)
    assert signals.run(1, target) == {target: (1, 0)}, "the training ended before the signal, or in other bytes"


def test_a_kill_while_the_store_is_created_loses_no_store_and_leaves_no_draft() -> None:
    seen = campaign("tests.faults.killing", "5", "store")
    assert seen["killed_in_a_save"] > 0, "no kill came while the store was created"
    assert (seen["kills"], seen["left_over"]) == (5, 0)


BUSY = "is busy, it is being blocked by"
TRAINS_ALREADY = "another process is training with the same inputs: wait for it, or stop it"
TRAIN = ("dvc", "repro", "--force", "--single-item", "train")
JOB = (sys.executable, "-m", "pipeline", "repro")
CHANGES = {"train.steps": 500, "train.report_every_steps": 50, "train.validate_every_steps": 250}


def remains(folder: Path) -> list[Path]:
    """Return work folders, their locks and drafts."""
    return [*(folder / ".pipeline/work").iterdir(), *folder.rglob("*.draft")]


class Twins(NamedTuple):
    folder: Path
    first: Job
    second: Job
    digests: dict[str, str]


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Twins:
    """Return a checkout in which a second `dvc repro` was started while the training of the first one was paused."""
    folder = repository(tmp_path_factory.mktemp("twins"), CHANGES)
    with in_the_middle(folder, "dvc", "repro", "train") as first:
        trainer = first.trainer()
        assert trainer
        trainer.suspend()
        (second := Job(folder, "dvc", "repro", "train")).end()
        trainer.resume()
        first.end()
        return Twins(folder, first, second, digests(folder))


def test_of_two_repros_one_works_and_the_other_names_it(twins: Twins) -> None:
    assert twins.first.process.returncode == 0, twins.first.said
    assert twins.second.process.returncode != 0
    assert BUSY in twins.second.said
    assert remains(twins.folder) == []
    assert "Data and pipelines are up to date" in call(twins.folder, "dvc", "repro", "train", **VARIABLES)


def test_of_two_trainings_one_works_and_the_other_says_what_to_do(twins: Twins, monkeypatch, capsys) -> None:
    monkeypatch.chdir(twins.folder)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    with in_the_middle(twins.folder, sys.executable, "-m", "pipeline", "train") as first:
        first.process.send_signal(signal.SIGSTOP)  # it does not end before the second has begun
        assert main(["train"]) == 69
        first.process.send_signal(signal.SIGCONT)
        assert TRAINS_ALREADY in capsys.readouterr().err
        assert first.end() == 0
    assert digests(twins.folder) == twins.digests
    assert remains(twins.folder) == []


def test_a_job_whose_first_process_alone_is_ended_ends_dvc_too_and_resumes(twins: Twins, tmp_path: Path) -> None:
    folder = repository(tmp_path, CHANGES)
    with in_the_middle(folder, *JOB) as job:
        job.process.send_signal(signal.SIGTERM)
        assert job.end() == 128 + signal.SIGTERM
    assert "resuming after step" in repeat(folder, *JOB)
    assert digests(folder) == twins.digests


def test_after_a_killed_dvc_the_same_command_ends_in_the_same_bytes(twins: Twins) -> None:
    with in_the_middle(twins.folder, *TRAIN) as dvc:
        dvc.process.kill()
        dvc.end()
        # as a kill in the middle of its own writing leaves it
        (twins.folder / ".dvc/tmp/rwlock").write_text('{"read": {"/x', encoding="utf-8")
        refused = Job(twins.folder, *TRAIN)
        assert refused.end() == 255
        assert "JSON structure is corrupted" in refused.said, "where DVC mends this itself, check need not"
        assert "was truncated by a DVC that was killed" in call(twins.folder, "python", "-m", "pipeline", "check", **VARIABLES)
        repeat(twins.folder, *TRAIN)
    assert digests(twins.folder) == twins.digests
    assert remains(twins.folder) == []


def repeat(folder: Path, *command: str) -> str:
    """Repeat the command until the training of the killed DVC has ended, and return its output."""
    deadline_s = time.monotonic() + LIMIT_S
    while (job := Job(folder, *command)).end() and TRAINS_ALREADY in job.said and time.monotonic() < deadline_s:
        pass
    assert job.process.returncode == 0, job.said
    return job.said
