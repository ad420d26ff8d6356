"""The work folder of a training: what it needs to go on after it was killed, under a name that its inputs decide."""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.io import files
from pipeline.refusal import Refusal
from pipeline.runtime.run_identity import Inputs

OLD_FOLDERS_KEPT = 2
RECORD, KEPT = "inputs.json", "nonfinite-*"
CLAIM_WITHIN_S, RETRY_S = 3.0, 0.025
"""A training whose DVC was killed needs a moment to save and end; one that looks over old folders holds their locks for an instant."""


@dataclass(frozen=True)
class Work:
    """A locked folder outside DVC's outputs, which DVC deletes before each run."""

    folder: Path

    def clear(self) -> None:
        """The results are written: nothing is left to resume. What was kept for somebody to look at stays as old folders do."""
        if not any(self.folder.glob(KEPT)):
            shutil.rmtree(self.folder)
            return
        for path in set(self.folder.iterdir()) - set(self.folder.glob(KEPT)) - {self.folder / RECORD}:
            path.unlink()


@contextmanager
def claimed(root: Path, inputs: Inputs) -> Iterator[Work]:
    """The folder of these inputs, held by this process alone. Raises Refusal while another process trains the same."""
    parent = root / ".pipeline/work"
    folder, lock = parent / inputs.key, lock_of(parent, inputs.key)
    with claim(lock) as taken:
        if not taken:
            raise Refusal(f"{folder}: another process trains from the same inputs: wait for it, or stop it")
        if not folder.exists():
            explain_new_start(parent, inputs)
            prune(parent)
        files.write_json(folder / RECORD, inputs.record)
        try:
            yield Work(folder)
        finally:
            if not folder.exists():
                lock.unlink(missing_ok=True)


def lock_of(parent: Path, key: str) -> Path:
    """Beside the folder, which goes and comes. Only who holds the lock may unlink it."""
    return parent / f"{key}.lock"


@contextmanager
def claim(lock: Path) -> Iterator[bool]:
    """The lock, waited for as long as another training may look a folder over."""
    deadline = time.monotonic() + CLAIM_WITHIN_S
    with ExitStack() as stack:
        while not (taken := stack.enter_context(files.locked(lock, wait=False))) and time.monotonic() < deadline:
            time.sleep(RETRY_S)
        yield taken


def others(parent: Path) -> list[Path]:
    """Work folders of other inputs, the newest first."""
    return sorted(parent.glob(f"*/{RECORD}"), key=age, reverse=True)


def age(record: Path) -> float:
    """When the folder was last written to; long ago where another process has just removed it."""
    try:
        return max(path.stat().st_mtime for path in record.parent.iterdir())
    except (FileNotFoundError, ValueError):
        return 0.0


def explain_new_start(parent: Path, inputs: Inputs) -> None:
    """Where an unfinished training of other inputs lies, say what changed since."""
    for path in others(parent)[:1]:
        with files.locked(lock_of(parent, path.parent.name), wait=False) as unfinished:
            before = read_record(path)
            changed = [name for name, value in inputs.record.items() if before.get(name) != value]
            if unfinished and before and any(path.parent.glob("step-*")):
                print(f"train: an unfinished training lies in {path.parent}, but its inputs differ ({', '.join(changed)}): starting anew")


def read_record(path: Path) -> dict[str, Any]:
    """Empty where the disk gave back something else, or another process removed it: an old folder may not hinder a new training."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, FileNotFoundError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def prune(parent: Path) -> None:
    """Drop all folders that no process holds but the newest of other inputs, and the lock files of all that were dropped."""
    kept = {path.parent.name for path in others(parent)[:OLD_FOLDERS_KEPT]}
    known = {path.stem for path in parent.glob("*.lock")} | {path.name for path in parent.iterdir() if path.is_dir()}
    for key in known - kept:
        with files.locked(lock_of(parent, key), wait=False) as free:
            if free:
                if any((parent / key).glob("step-*")):
                    print(f"train: the unfinished training in {parent / key} is dropped: of old ones the last {OLD_FOLDERS_KEPT} are kept")
                shutil.rmtree(parent / key, ignore_errors=True)
                lock_of(parent, key).unlink(missing_ok=True)
