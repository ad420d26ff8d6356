"""Kill trainings at random moments and repeat each: `python -m tests.faults.killing 200` prints the outcome as JSON.

A name of `project.SETTINGS` after the number, such as `code`, kills the training of a text model. `TEST_DEVICE=cuda` trains on a GPU.

Children are forked from this process, which has only imported torch: a fork after torch has started threads would hang.
"""

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch._dynamo  # noqa: F401  # optimizers import it when the first of them is made

import pipeline.models.mlp  # imported once, before the forks
import pipeline.models.recurrent
import pipeline.models.transformer
import pipeline.train.stage  # noqa: F401
from pipeline.__main__ import main
from pipeline.core import files
from tests import project

LIMIT_S = 300.0
LOG = "killing.log"
ATTEMPTS = 10
"""Trainings per kill at most: some end before they are killed."""
# with loss scaling, EMA, dropout, gradient accumulation and augmentation
CHANGES = {
    "model": {"name": "mlp", "weights": None, "width": 24, "depth": 2, "dropout": 0.2},
    "train.steps": 30,
    "train.batch_size": 15,
    "train.micro_batch_size": 8,
    "train.precision": "fp16",
    "train.ema_decay": 0.9,
    "train.export_weights": "best",
    "train.report_every_steps": 5,
    "train.validate_every_steps": 10,
    "augment.crop_padding": 1,
    "augment.cutout": 2,
}
TEXT_CHANGES = {"train.ema_decay": 0.9, "train.export_weights": "best", "train.report_every_steps": 4}
VARIABLES = {
    "PIPELINE_TRACKING": "false",
    "PIPELINE_DEVICE": os.environ.get("TEST_DEVICE", "cpu"),
    "PIPELINE_THREADS": "1",
    "PIPELINE_CHECKPOINT_EVERY_STEPS": "1",
}


def fork(verb: str, folder: Path) -> int:
    """Fork a child that runs a stage in a folder, and appends its output to the file LOG there."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        with (folder / LOG).open("ab") as log:
            for descriptor in (1, 2):  # of the process, so that what CUDA prints is logged too
                os.dup2(log.fileno(), descriptor)
        os.chdir(folder)
        status = main([verb])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def finish(child: int, folder: Path) -> None:
    """Wait until a child ends. Raises AssertionError with the end of its output if it fails, or takes longer than LIMIT_S seconds."""
    check(ended(child, time.monotonic() + LIMIT_S), folder)


def check(status: int | None, folder: Path) -> None:
    """Raise AssertionError, with the end of the output of a child, if its status is not 0. None stands for a child that did not end."""
    outcome = f"no end within {LIMIT_S} seconds" if status is None else f"exit {os.waitstatus_to_exitcode(status)}"
    assert status == 0, f"{folder}: {outcome}:\n{(folder / LOG).read_text(errors='replace')[-2000:]}"


def ended(child: int, deadline: float) -> int | None:
    """Return the status of a child that ends before the deadline; otherwise kill it and return None."""
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def undisturbed(folder: Path) -> tuple[float, float]:
    """Train to the end. Return the seconds that this took, and those from the first checkpoint until the checkpoints were removed."""
    begin_s, child = time.monotonic(), fork("train", folder)
    with_checkpoint_s: list[float] = []
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None and time.monotonic() < begin_s + LIMIT_S:
        if has_checkpoint(folder):
            with_checkpoint_s.append(time.monotonic())
        time.sleep(0.001)
    check(ended(child, begin_s + LIMIT_S), folder)
    assert with_checkpoint_s, f"{folder}: no checkpoint was seen during the training"
    return time.monotonic() - begin_s, with_checkpoint_s[-1] - with_checkpoint_s[0]


def killed(child: int, folder: Path, after_s: float, *, since_checkpoint: bool) -> bool:
    """Kill a child `after_s` seconds after its start, or after its first checkpoint.

    Return False if it ended before. Raises AssertionError with the end of its output if it failed.
    """
    begin_s = time.monotonic()
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            check(status, folder)
            return False
        if since_checkpoint and has_checkpoint(folder):
            since_checkpoint, begin_s = False, time.monotonic()
        if not since_checkpoint and time.monotonic() >= begin_s + after_s:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return True
        time.sleep(0.001)


def has_checkpoint(folder: Path) -> bool:
    try:
        return any(folder.glob(".pipeline/work/*/step-*"))
    except FileNotFoundError:  # the training has ended, and removes the folder meanwhile
        return False


@dataclass
class Tally:
    """Counts: `digests` holds more than one if the promise is broken, `resumed` runs had a checkpoint, `drafts` were killed during a save."""

    kills: int
    digests: set[str]
    resumed: int = 0
    drafts: int = 0


def campaign(top: Path, kills: int, setting: str, *, seed: int) -> tuple[str, Tally]:
    """Return the digest of an undisturbed run and the tally of `kills` others, each killed once and repeated."""
    random.seed(seed)
    changes = CHANGES if setting == "digits" else TEXT_CHANGES
    whole = project.make(top / "whole", changes, setting=setting)
    finish(fork("prepare", whole), whole)
    took_s, resumable_s = undisturbed(whole)
    tally = Tally(0, set())
    for _ in range(ATTEMPTS * kills):
        folder = project.make(top / "killed", changes, setting=setting)
        (folder / "data/prepared").symlink_to(whole / "data/prepared")
        # most of a short training is its start, mainly on a GPU, so every second kill waits for the first checkpoint
        since_checkpoint = tally.kills % 2 == 1
        after_s = random.uniform(0.0, resumable_s) if since_checkpoint else random.uniform(0.2, 1.0) * took_s
        if killed(fork("train", folder), folder, after_s, since_checkpoint=since_checkpoint):
            tally.kills += 1
            tally.resumed += has_checkpoint(folder)
            tally.drafts += any(folder.glob(".pipeline/work/*/.*.draft"))
            finish(fork("train", folder), folder)
            tally.digests.add(files.digest_of(project.digests(folder)))
        shutil.rmtree(folder)
        if tally.kills == kills:
            return files.digest_of(project.digests(whole)), tally
    raise AssertionError(
        f"{setting}: only {tally.kills} of {ATTEMPTS * kills} trainings were killed before they ended, {kills} were asked for"
    )


def run(kills: int, setting: str = "digits", *, seed: int = 7) -> dict[str, object]:
    os.environ.update(VARIABLES)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as top:
        whole, tally = campaign(Path(top), kills, setting, seed=seed)
    return {
        "setting": setting,
        "kills": tally.kills,
        "other_digests": len(tally.digests - {whole}),
        "resumed": tally.resumed,
        "killed_in_a_save": tally.drafts,
        "seconds": round(time.monotonic() - begin),
    }


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), *sys.argv[2:])))
