"""Let every input or output call of a save fail in turn: `python -m tests.faults.every_call` prints a line of JSON.

The children are forked from this process, which has imported torch and started no threads.
"""

import collections
import errno
import json
import shutil
import tempfile
from pathlib import Path

import numpy.ctypeslib  # noqa: F401  # safetensors imports it at its first save
import torch

from pipeline.train.engine.checkpoint import Checkpoints
from pipeline.train.engine.metrics import Row
from tests.faults.system_calls import Fault, Outcome, can_trace, traced

OLD, NEW = {"weight": torch.arange(5000.0), "count": torch.tensor(1)}, {"weight": torch.arange(5000.0).flip(0), "count": torch.tensor(2)}
ROWS: list[Row] = [{"step": step, "train/objective": 1 / step} for step in (1, 2)]
REFUSED = 7
FAULTS = {"death": None, "a full disk": errno.ENOSPC, "a broken disk": errno.EIO}


def save(checkpoints: Checkpoints, step: int) -> int:
    try:
        checkpoints.save(step, OLD if step == 1 else NEW, {"step": step, "progress": {"rows": ROWS[:step]}})
    except OSError:
        return REFUSED
    return 0


def newest(folder: Path, step: int) -> int:
    """Return 0 if the newest checkpoint is whole and not older than `step`."""
    checkpoint = Checkpoints(folder, kept=2).newest()
    assert checkpoint is not None
    tensors, metadata = checkpoint
    assert metadata["step"] in (1, 2), metadata
    assert metadata["progress"]["rows"] == ROWS[: metadata["step"]]
    expected = OLD if metadata["step"] == 1 else NEW
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)
    return 0 if metadata["step"] >= step else 1


def attempt(top: Path, fault: Fault | None) -> tuple[Outcome, int]:
    """Save twice, with the fault in the second save, and read the result; the second value is 0 if no finished save is lost."""
    folder = top / "work"
    shutil.rmtree(folder, ignore_errors=True)
    checkpoints = Checkpoints(folder, kept=2)
    assert save(checkpoints, 1) == 0
    assert checkpoints.newest()
    outcome = traced(lambda: save(checkpoints, 2), fault)
    # a save that said that it succeeded must be found
    return outcome, newest(folder, 2 if outcome.exit_code == 0 else 1)


def run() -> dict[str, object]:
    """Let each call meet a death, and in turn a full and a broken disk."""
    seen: dict[str, collections.Counter[str]] = {name: collections.Counter() for name in FAULTS}
    with tempfile.TemporaryDirectory() as top:
        undisturbed, reading = attempt(Path(top), None)
        assert (undisturbed.exit_code, reading) == (0, 0)
        for at in range(len(undisturbed.calls)):
            for name in ("death", "a broken disk" if at % 2 else "a full disk"):
                outcome, reading = attempt(Path(top), Fault(at, FAULTS[name]))
                assert reading == 0, f"{name} at call {at} ({outcome.calls[-1]}): nothing whole is left"
                assert outcome.exit_code in ((-9,) if name == "death" else (0, REFUSED)), f"{name} at call {at}: exit {outcome.exit_code}"
                seen[name]["ended" if outcome.exit_code < 0 else "said" if outcome.exit_code else "of no consequence"] += 1
    return {"calls": len(undisturbed.calls), "kinds": dict(collections.Counter(undisturbed.calls)), "seen": seen}


if __name__ == "__main__":
    print(json.dumps({"skipped": can_trace()} if can_trace() else run()))
