"""A disk that keeps, when the power fails, only what was forced to it: contents by fsync of a file, names by fsync of its folder."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from pipeline.engine.checkpoint import Checkpoints

SAVES = 4


@dataclass
class Disk:
    """What would be left of one folder, as of its last fsyncs; `before(name)` is called ahead of each step of a save."""

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
        """The folder after the power came back: a file of which nothing was forced is there and empty."""
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name, number in names.items():
            (target / name).write_bytes(self.contents.get(number, b""))

    def names_now(self) -> dict[str, int]:
        """Of a disk that happened to write its names early."""
        return {path.name: path.stat().st_ino for path in self.folder.iterdir()}


@dataclass
class Seen:
    """How often the power failed, and after which saves a finished one was lost."""

    instants: int = 0
    lost: list[str] = field(default_factory=list)


def cut_everywhere(top: Path) -> Seen:
    """Save some checkpoints, and look before and after each fsync, rename and removal at what a power cut would leave."""
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
            if step < finished or (found and not torch.equal(found[0]["weight"], weight(step))):
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
        for step in range(1, SAVES + 1):
            Checkpoints(folder, kept=2).save(step, {"weight": weight(step)}, {"step": step})
            finished = step
            look("when it is finished")
    return seen


def weight(step: int) -> torch.Tensor:
    return torch.arange(100.0) * step
