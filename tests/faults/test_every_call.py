"""Each system call of a save fails in turn, and a simulated disk keeps only synced data in a power cut: contents after fsync of the file, names after fsync of its folder."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from pipeline.core import files
from pipeline.train.engine.checkpoint import Checkpoints
from pipeline.train.engine.metrics import Row
from tests.forking import campaign


def test_a_kill_or_an_error_at_every_call_of_a_save_leaves_a_whole_checkpoint() -> None:
    outcome = campaign("tests.faults.every_call")
    if "skipped" in outcome:
        pytest.skip(outcome["skipped"])
    assert {"write", "fsync", "rename", "openat"} <= set(outcome["kinds"])
    assert outcome["seen"]["death"] == {"ended": outcome["calls"]}
    for errors in (outcome["seen"]["a full disk"], outcome["seen"]["a broken disk"]):
        assert errors["said"] >= 4, "writing, forcing and moving must each be able to fail"


def test_a_power_cut_at_any_moment_of_a_save_loses_no_finished_checkpoint(tmp_path) -> None:
    seen = cut_everywhere(tmp_path)
    assert seen.instants >= 20
    assert seen.lost == []


@pytest.mark.parametrize("forgotten", ["file", "folder"])
def test_a_save_without_fsync_of_the_file_or_its_folder_is_detected(tmp_path, monkeypatch, forgotten: str) -> None:
    sync = files.sync
    monkeypatch.setattr(files, "sync", lambda path: None if path.is_dir() == (forgotten == "folder") else sync(path))
    assert cut_everywhere(tmp_path).lost != []


SAVES = 4
ROWS: list[Row] = [{"step": step, "train/objective": 1 / step} for step in range(1, SAVES + 1)]


@dataclass
class Disk:
    """The contents and names of one folder that survive a power cut."""

    folder: Path
    contents: dict[int, bytes] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)

    def force(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        place = Path(f"/proc/self/fd/{descriptor}").resolve()
        if place == self.folder:
            self.names = {path.name: path.stat().st_ino for path in self.folder.iterdir()}
        elif place.parent == self.folder:
            self.contents[found.st_ino] = place.read_bytes()

    def leave(self, target: Path, *, names: dict[str, int]) -> None:
        """Write the folder as it is after a power cut: a file that was not synced is empty."""
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name, number in names.items():
            (target / name).write_bytes(self.contents.get(number, b""))

    def names_now(self) -> dict[str, int]:
        """Return the names of a disk that wrote them before the fsync of the folder."""
        return {path.name: path.stat().st_ino for path in self.folder.iterdir()}


@dataclass
class Seen:
    """The number of simulated power cuts, and those that lost a finished save."""

    instants: int = 0
    lost: list[str] = field(default_factory=list)


def cut_everywhere(top: Path) -> Seen:
    """Save some checkpoints, and read what a power cut would leave before and after each fsync, rename and removal."""
    folder = (top / "work").resolve()
    folder.mkdir()
    disk, seen, finished = Disk(folder), Seen(), 0

    looking: list[str] = []

    def look(when: str) -> None:
        looking.append(when)
        for kind, names in (("late", disk.names), ("early", disk.names_now())):
            seen.instants += 1
            disk.leave(top / "after", names=names)
            found = Checkpoints(top / "after", kept=2).newest()
            step = found[1]["step"] if found else 0
            if step < finished or (
                found and (not torch.equal(found[0]["weight"], weight(step)) or found[1]["progress"]["rows"] != ROWS[:step])
            ):
                seen.lost.append(f"{when} with names {kind}: step {step} of {finished}")
        looking.pop()

    def watched(call: Callable[..., object], name: str) -> Callable[..., object]:
        def around(*arguments: object, **more: object) -> object:
            if looking:
                return call(*arguments, **more)
            look(f"before {name}")
            answer = call(*arguments, **more)
            look(f"after {name}")
            return answer

        return around

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", watched(disk.force, "fsync"))
        patch.setattr(Path, "replace", watched(Path.replace, "rename"))
        patch.setattr(Path, "unlink", watched(Path.unlink, "unlink"))
        checkpoints = Checkpoints(folder, kept=2)
        for step in range(1, SAVES + 1):
            checkpoints.save(step, {"weight": weight(step)}, {"step": step, "progress": {"rows": ROWS[:step]}})
            finished = step
            look("when it is finished")
    return seen


def weight(step: int) -> torch.Tensor:
    return torch.arange(100.0) * step
