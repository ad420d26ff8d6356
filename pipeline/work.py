"""The work folder of a training: what it needs to go on after it was killed, under a name that its inputs decide."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import files
from pipeline.inputs import Inputs
from pipeline.refusal import Refusal

OLD_FOLDERS_KEPT = 2


@dataclass(frozen=True)
class Work:
    """A locked folder outside DVC's outputs, which DVC deletes before each run."""

    folder: Path

    def clear(self) -> None:
        """The results are written: nothing is left to resume."""
        shutil.rmtree(self.folder)


@contextmanager
def claimed(root: Path, inputs: Inputs) -> Iterator[Work]:
    """The folder of these inputs, held by this process alone. Raises Refusal while another process trains the same."""
    parent = root / ".pipeline/work"
    folder = parent / inputs.key
    with files.locked(parent / f"{inputs.key}.lock", wait=False) as taken:
        if not taken:
            raise Refusal(f"{folder}: another process trains from the same inputs: wait for it, or stop it")
        if not folder.exists():
            explain_new_start(parent, inputs)
            drop_old(parent)
        files.write_json(folder / "inputs.json", inputs.record)
        yield Work(folder)


def others(parent: Path) -> list[Path]:
    """Work folders of other inputs, the newest first."""
    return sorted(parent.glob("*/inputs.json"), key=age, reverse=True)


def age(path: Path) -> float:
    """When the file was written; long ago where another process has just removed it."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def explain_new_start(parent: Path, inputs: Inputs) -> None:
    """Where an unfinished training of other inputs lies, say what changed since."""
    for path in others(parent)[:1]:
        with files.locked(parent / f"{path.parent.name}.lock", wait=False) as unfinished:
            before = read_record(path)
            changed = [name for name, value in inputs.record.items() if before.get(name) != value]
            if unfinished and before and any(path.parent.glob("step-*")):
                print(f"train: an unfinished training lies in {path.parent}, but its inputs differ ({', '.join(changed)}): starting anew")


def read_record(path: Path) -> dict[str, Any]:
    """Empty where the disk gave back something else, or another process removed it: an old folder may not hinder a new training."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, FileNotFoundError):
        return {}
    return record if isinstance(record, dict) else {}


def drop_old(parent: Path) -> None:
    for path in others(parent)[OLD_FOLDERS_KEPT:]:
        with files.locked(parent / f"{path.parent.name}.lock", wait=False) as free:
            if free:
                shutil.rmtree(path.parent, ignore_errors=True)
