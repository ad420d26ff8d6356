"""Kill processes at random moments and repeat each: `python -m tests.faults.killing 200 digits` prints the outcome as JSON.

The name is that of a setting of `project.SETTINGS`, such as `code`, whose trainings are killed, or `store`: processes that create MLflow's
SQLite store. `TEST_DEVICE=cuda` trains on a GPU.

Children are forked from this process, which has only imported what they need: a fork after torch has started threads would hang.
"""

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from pipeline.__main__ import main
from pipeline.core import files
from pipeline.core.environment import Environment
from tests import project
from tests.forking import fork

LIMIT_S = 300.0
LOG = "killing.log"
ATTEMPTS = 10
"""Processes per kill at most: some end before they are killed."""
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
    "OPENBLAS_NUM_THREADS": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
NEEDED = {
    "training": ("torch._dynamo", *(f"pipeline.models.{name}" for name in ("mlp", "recurrent", "transformer")), "pipeline.train.stage"),
    "store": ("mlflow.store.tracking.sqlalchemy_store", "mlflow.tracking._tracking_service.utils", "alembic.command"),
}
"""Modules that are imported once, before the forks."""
Begun = Callable[[Path], bool]


def start(folder: Path, action: Callable[[], int | None]) -> int:
    """Fork a child that runs `action` in a folder, and appends its output to the file LOG there."""

    def logged() -> int | None:
        with (folder / LOG).open("ab") as log:
            for descriptor in (1, 2):  # of the process, so that what CUDA prints is logged too
                os.dup2(log.fileno(), descriptor)
        os.chdir(folder)
        return action()

    return fork(logged)


def check(status: int | None, folder: Path) -> None:
    """Raise AssertionError, with the end of the output of a child, if its status is not 0. None stands for a child that did not end."""
    outcome = f"no end within {LIMIT_S} seconds" if status is None else f"exit {os.waitstatus_to_exitcode(status)}"
    assert status == 0, f"{folder}: {outcome}:\n{(folder / LOG).read_text(errors='replace')[-2000:]}"


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def ended(child: int, deadline_s: float, look: Callable[[], object] = int) -> int | None:
    """Return the status of a child that ends before the deadline; otherwise kill it and return None. `look` is called meanwhile."""
    while time.monotonic() < deadline_s:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        look()
        time.sleep(0.001)
    kill(child)
    return None


def finish(folder: Path, action: Callable[[], int | None]) -> None:
    """Run an action to its end. Raises AssertionError with the end of its output if it fails, or takes longer than LIMIT_S seconds."""
    check(ended(start(folder, action), time.monotonic() + LIMIT_S), folder)


def killed(child: int, folder: Path, after_s: float, begun: Begun | None) -> bool:
    """Kill a child `after_s` seconds after its start, or after `begun` was true. Return False if it ended before."""
    begin_s = time.monotonic()
    while not (done := os.waitpid(child, os.WNOHANG))[0]:
        if begun and begun(folder):
            begun, begin_s = None, time.monotonic()
        if not begun and time.monotonic() >= begin_s + after_s:
            kill(child)
            return True
        time.sleep(0.001)
    check(done[1], folder)
    return False


def has_checkpoint(folder: Path) -> bool:
    try:
        return any(folder.glob(".pipeline/work/*/step-*"))
    except FileNotFoundError:  # the training has ended, and removes the folder meanwhile
        return False


def train() -> int:
    return main(["train"])


def undisturbed(folder: Path) -> tuple[float, float]:
    """Train to the end. Return the seconds that this took, and those from the first checkpoint until the checkpoints were removed."""
    begin_s, seen_s = time.monotonic(), list[float]()
    status = ended(start(folder, train), begin_s + LIMIT_S, lambda: seen_s.append(time.monotonic()) if has_checkpoint(folder) else None)
    check(status, folder)
    assert seen_s, f"{folder}: no checkpoint was seen during the training"
    return time.monotonic() - begin_s, seen_s[-1] - seen_s[0]


def repeated(top: Path, kills: int, make: Callable[[Path], Callable[[], int | None]], moment: Callable[[int], tuple[float, Begun | None]]):
    """Kill `kills` processes, each in a folder and with the action that `make` returns, at a moment that follows from the number of the kill.

    Yields each folder twice: after the kill, and after the same action was repeated to its end.
    """
    num_kills = 0
    for _ in range(ATTEMPTS * kills):
        folder = top / "killed"
        action = make(folder)
        if killed(start(folder, action), folder, *moment(num_kills)):
            num_kills += 1
            yield folder, False
            finish(folder, action)
            yield folder, True
        shutil.rmtree(folder)
        if num_kills == kills:
            return
    raise AssertionError(f"only {num_kills} of {ATTEMPTS * kills} processes were killed before they ended, {kills} were asked for")


def kill_trainings(top: Path, kills: int, setting: str) -> Counter[str]:
    """Count `other_digests` than those of an undisturbed training, which break the promise, and how many kills met a checkpoint or a save."""
    changes = CHANGES if setting == "digits" else TEXT_CHANGES
    whole = project.make(top / "whole", changes, setting=setting)
    finish(whole, lambda: main(["prepare"]))
    took_s, resumable_s = undisturbed(whole)
    found, digests = Counter[str](), {files.digest_of(project.digests(whole))}

    def make(folder: Path) -> Callable[[], int]:
        (project.make(folder, changes, setting=setting) / "data/prepared").symlink_to(whole / "data/prepared")
        return train

    def moment(number: int) -> tuple[float, Begun | None]:
        # most of a short training is its start, mainly on a GPU, so every second kill waits for the first checkpoint
        return (random.uniform(0.0, resumable_s), has_checkpoint) if number % 2 else (random.uniform(0.2, 1.0) * took_s, None)

    for folder, is_repeated in repeated(top, kills, make, moment):
        if is_repeated:
            digests.add(files.digest_of(project.digests(folder)))
        else:
            found.update(kills=1, resumed=has_checkpoint(folder), killed_in_a_save=any(folder.glob(".pipeline/work/*/.*.draft")))
    found["other_digests"] = len(digests) - 1
    return found


def kill_creations(top: Path, kills: int) -> Counter[str]:
    """Kill within a second after the draft of the store is there. Count drafts that were left, and files left over after the repetition."""
    from pipeline.runs.mlflow.store import Store

    found = Counter[str]()

    def has_draft(root: Path) -> bool:
        return any(root.glob(".*.draft"))

    def make(root: Path) -> Callable[[], None]:
        root.mkdir()
        return lambda: Store(Environment.model_validate({"DVC_ROOT": root})).run_for("a journal", {}, None) and None

    for root, is_repeated in repeated(top, kills, make, lambda _: (random.uniform(0.0, 1.0), has_draft)):
        found.update({"left_over": any(root.glob(".mlflow*"))} if is_repeated else {"kills": 1, "killed_in_a_save": has_draft(root)})
    return found


def run(kills: int, name: str = "digits", *, seed: int = 7) -> dict[str, object]:
    os.environ.update(VARIABLES)
    random.seed(seed)
    for module in NEEDED["store" if name == "store" else "training"]:
        import_module(module)
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory() as top:
        found = kill_creations(Path(top), kills) if name == "store" else kill_trainings(Path(top), kills, name)
    zero = dict.fromkeys(("kills", "other_digests", "resumed", "killed_in_a_save", "left_over"), 0)
    return {"name": name, **zero, **found, "seconds": round(time.monotonic() - begin_s)}


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), *sys.argv[2:])))
