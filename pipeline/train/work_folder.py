"""The work folder of a training, named after the key of its inputs. It contains the checkpoints to resume from."""

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.core import files
from pipeline.core.identity import RunIdentity
from pipeline.core.refusal import Unavailable, listed

OLD_FOLDERS_KEPT = 2
MOST_SHOWN = 5
HISTORY = "history.jsonl"
"""The rows of the history up to the newest checkpoint."""
LASTING = "lasting-"
"""The prefix of the name of a checkpoint that is kept for a training of another length."""
RECORD, MICRO_BATCH_CHANGES, DUMPS = "inputs.json", "switches.json", "nonfinite-*"
NAMED = "named"
"""A file in a work folder: the inputs that a message to the user of another training has named as different since this one ran."""
CHECKPOINT = re.compile(rf"(?:{LASTING})?step-(\d+)\.safetensors")
Agrees = Callable[[int, Mapping[str, Any]], bool]
"""Returns True if a training with this section `train`, which differs in its length, is the same up to this step."""
CLAIM_WITHIN_S, RETRY_S = 3.0, 0.025
"""Timeout and interval of retries: a training whose DVC was killed needs time to save, and `prune` holds locks for an instant."""


@dataclass(frozen=True)
class Work:
    """The work folder of one training, locked by this process.

    It contains the checkpoints from which to resume the training, and `inputs.json`, the record of the training's inputs. dvc.yaml does not
    list the folder as an output, because DVC deletes a stage's outputs before each run.
    """

    folder: Path

    def micro_batch_changes(self) -> list[dict[str, int]]:
        """Return the changes of the micro-batch size that `add_micro_batch_change` has recorded."""
        path = self.folder / MICRO_BATCH_CHANGES
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []

    def add_micro_batch_change(self, change: Mapping[str, int]) -> None:
        """Record that all processes must use another micro-batch size from a step on: one of them has run out of memory there.

        Changes at later steps are dropped: they were to a larger size.
        """
        files.write_json(
            self.folder / MICRO_BATCH_CHANGES, [*(each for each in self.micro_batch_changes() if each["step"] < change["step"]), change]
        )

    def clear(self, *, keeps_lasting: bool = False) -> None:
        """Delete the work folder. Call this after the results are written.

        The folder may contain dumps (`nonfinite-*`), the batches of steps with a non-finite loss or gradient, and, if it `keeps_lasting`, a
        checkpoint for a training of another length. If so, keep them and the record of the inputs. `prune` deletes them later.
        """
        lasting = set(self.folder.glob(f"{LASTING}*")) if keeps_lasting else set()
        kept = {*self.folder.glob(DUMPS), *lasting, *([self.folder / HISTORY] if lasting else [])}
        if not kept:
            shutil.rmtree(self.folder)
            return
        for path in set(self.folder.iterdir()) - kept - {self.folder / RECORD}:
            path.unlink()


def path(root: Path, inputs: RunIdentity) -> Path:
    """Return the path of the work folder of the training with these inputs."""
    return root / ".pipeline/work" / inputs.key


@contextmanager
def claimed(root: Path, inputs: RunIdentity, *, writes: bool = True, agrees: Agrees = lambda *_: False) -> Iterator[Work]:
    """Yield the work folder of the training with these inputs, locked by this process. If several processes train together, only the one
    that `writes` locks it. A new folder begins with a checkpoint of a training of another length, if one `agrees`.

    Raises Unavailable if another process trains with the same inputs.
    """
    folder = path(root, inputs)
    if not writes:
        yield Work(folder)
        return
    parent, lock = folder.parent, lock_of(folder.parent, inputs.key)
    with claim(lock) as taken:
        if not taken:
            raise Unavailable(f"{folder}: another process is training with the same inputs: wait for it, or stop it")
        if not (folder / RECORD).exists():  # it is written last, so a copy that was cut off is made again
            if not copy_checkpoint(parent, folder, inputs, agrees):
                explain_new_start(parent, inputs)
            prune(parent, inputs)
        (folder / NAMED).unlink(missing_ok=True)
        files.write_json(folder / RECORD, inputs.record)
        try:
            yield Work(folder)
        finally:
            if not folder.exists():
                lock.unlink(missing_ok=True)


def lock_of(parent: Path, key: str) -> Path:
    """Return the path of the lock file for the work folder `parent / key`.

    The lock file is in `parent`, not in the work folder, so that the work folder can be deleted while it is locked. A process must hold the
    lock when it deletes the lock file.
    """
    return parent / f"{key}.lock"


@contextmanager
def claim(lock: Path) -> Iterator[bool]:
    """Try for CLAIM_WITHIN_S seconds to take the lock. Yield True if it was taken, else False."""
    deadline = time.monotonic() + CLAIM_WITHIN_S
    with ExitStack() as stack:
        while not (taken := stack.enter_context(files.locked(lock, wait=False))) and time.monotonic() < deadline:
            time.sleep(RETRY_S)
        yield taken


def all_records(parent: Path) -> list[Path]:
    """Return the paths of the records in all work folders below `parent`, newest first. A record lists the inputs of a training."""
    return sorted(parent.glob(f"*/{RECORD}"), key=last_change_s, reverse=True)


def last_change_s(record: Path) -> float:
    """Return when the folder of the record last changed, or 0.0 if another process has just removed that folder."""
    try:
        return max(path.stat().st_mtime for path in record.parent.iterdir())
    except (FileNotFoundError, ValueError):
        return 0.0


def copy_checkpoint(parent: Path, folder: Path, inputs: RunIdentity, agrees: Agrees) -> bool:
    """Copy the latest checkpoint that `agrees`, of a training that differs from the one with `inputs` only in its length, into `folder`, the
    new work folder. Return True if there is one.
    """
    found: list[tuple[int, Path]] = []
    for record in all_records(parent):
        before = read_inputs(record)
        with suppress(AttributeError, LookupError, TypeError, OSError):  # of a damaged record, or of a folder that is deleted meanwhile
            if before and without_length(before) == without_length(inputs):
                steps = {path: int(named[1]) for path in record.parent.iterdir() if (named := CHECKPOINT.fullmatch(path.name))}
                found += [(step, path) for path, step in steps.items() if agrees(step, before.params["train"])]
    for step, path in sorted(found, reverse=True):
        with files.locked(lock_of(parent, path.parent.name), wait=False) as free, suppress(OSError):
            if free:
                for source in filter(Path.exists, (path.with_name(HISTORY), path)):
                    with files.replacing(folder / source.name.removeprefix(LASTING)) as draft:
                        shutil.copyfile(source, draft)
                print(f"train: the training in {path.parent} has another length, and is the same up to step {step}: continuing after it")
                return True
    return False


def without_length(inputs: RunIdentity) -> RunIdentity:
    loop = {name: value for name, value in inputs.params.get("train", {}).items() if name not in ("epochs", "steps")}
    return replace(inputs, params={**inputs.params, "train": loop})


def explain_new_start(parent: Path, inputs: RunIdentity) -> None:
    """Tell the user why an unfinished training is not resumed: print which of its inputs differ from those of the new training.

    `inputs` are the inputs of the new training. Only one work folder is examined: the newest of this training on another machine, else the
    newest of all. Other inputs are named once for each folder, and only if the data are the same. Print nothing if this folder has no checkpoint or no readable record, or if another process holds its lock.
    """
    for path in [*elsewhere(parent, inputs), *all_records(parent)][:1]:
        with files.locked(lock_of(parent, path.parent.name), wait=False) as unfinished:
            before = read_inputs(path)
            if not unfinished or not before or not any(path.parent.glob("step-*")):
                continue
            changed = before.differences(inputs)
            if not before.differs_only_in_machine(inputs):
                marker, names = path.parent / NAMED, listed([name for name, _ in changed], MOST_SHOWN)
                if before.data != inputs.data or (marker.exists() and marker.read_text(encoding="utf-8") == names):
                    continue
                marker.write_text(names, encoding="utf-8")
                os.utime(marker, (0, 0))  # else the folder would be the newest
                print(f"train: the unfinished training in {path.parent} has other inputs ({names}): starting from the beginning")
                continue
            name, (there, here) = changed[0]
            if [name for name, _ in changed] == ["machine.threads"]:
                print(
                    f"train: the unfinished training in {path.parent} has {there} threads, which give other bits than {here}: starting from "
                    f"the beginning. `export PIPELINE_THREADS={there}`, and the same command continues it"
                )
                continue
            print(
                f"train: the unfinished training in {path.parent} began on a machine that gives other bits "
                f"({name}: {there} there, {here} here): starting from the beginning. The same command on a "
                'machine like that one continues it: docs/clusters.md, "One kind of machine"'
            )


def elsewhere(parent: Path, inputs: RunIdentity) -> list[Path]:
    """Return the records of the trainings that differ from the one with `inputs` in nothing but the machine, newest first."""
    return [path for path in all_records(parent) if (before := read_inputs(path)) and before.differs_only_in_machine(inputs)]


def read_inputs(record: Path) -> RunIdentity | None:
    """Return the inputs in a record, or None if it is damaged or missing. A damaged record stops no new training."""
    try:
        return RunIdentity(**json.loads(record.read_text(encoding="utf-8")))
    except (ValueError, TypeError, FileNotFoundError, RecursionError):
        return None


def prune(parent: Path, inputs: RunIdentity) -> None:
    """Delete all work folders, except the newest OLD_FOLDERS_KEPT, those of the training with `inputs` on other machines, and those locked
    by a process. Delete their lock files too.
    """
    kept = {path.parent.name for path in [*all_records(parent)[:OLD_FOLDERS_KEPT], *elsewhere(parent, inputs)]}
    known = {path.stem for path in parent.glob("*.lock")} | {path.name for path in parent.iterdir() if path.is_dir()}
    for key in known - kept:
        with files.locked(lock_of(parent, key), wait=False) as free:
            if free:
                if any((parent / key).glob("step-*")):
                    print(
                        f"train: deleting the unfinished training in {parent / key}: "
                        f"only the {OLD_FOLDERS_KEPT} newest work folders are kept"
                    )
                shutil.rmtree(parent / key, ignore_errors=True)
                lock_of(parent, key).unlink(missing_ok=True)
