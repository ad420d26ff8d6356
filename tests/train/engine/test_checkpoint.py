"""The newest states of a training: how many stay, and which is used."""

import math
import os
from pathlib import Path

import pytest
import torch

from pipeline.core.refusal import Refusal
from pipeline.inference import tensor_file
from pipeline.train.engine import checkpoint
from pipeline.train.engine.metrics import Row

TENSORS = {"weight": torch.arange(24, dtype=torch.float32).view(2, 3, 4), "count": torch.tensor(7)}


def test_only_the_newest_stay_and_a_damaged_one_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = checkpoint.Checkpoints(tmp_path, kept=2)
    assert kept.newest() is None
    for step in (1, 2, 30):
        kept.save(step, TENSORS, {"step": step})
    assert [path.name for path in kept.paths()] == ["step-000000000002.safetensors", "step-000000000030.safetensors"]
    kept.paths()[-1].write_bytes(b"")
    found = kept.newest()
    assert found is not None
    assert found[1] == {"step": 2}
    assert f"warning: {tmp_path / 'step-000000000030.safetensors'}: is damaged" in capsys.readouterr().out
    kept.save(3, TENSORS, {"step": 3})
    assert [path.name for path in kept.paths()] == ["step-000000000002.safetensors", "step-000000000003.safetensors"]


def test_a_process_that_may_not_move_a_damaged_one_refuses_it_and_leaves_it(tmp_path: Path) -> None:
    kept = checkpoint.Checkpoints(tmp_path, kept=2, writes=False)
    kept.save(1, TENSORS, {"step": 1})
    kept.paths()[0].write_bytes(b"")
    with pytest.raises(Refusal, match=r"step-000000000001\.safetensors"):
        kept.newest()
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000001.safetensors"]


def test_one_that_may_not_be_read_is_not_taken_for_a_damaged_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = checkpoint.Checkpoints(tmp_path, kept=2)
    kept.save(1, TENSORS, {"step": 1})
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        with pytest.raises(PermissionError):
            kept.newest()
    found = kept.newest()
    assert found is not None
    assert found[1] == {"step": 1}


def test_the_newest_with_finite_weights_stays_until_another_one_is_written(tmp_path: Path) -> None:
    saved = checkpoint.Checkpoints(tmp_path, kept=1)
    for step, value in ((1, 0.0), (2, 1.0), (3, math.nan), (4, math.inf)):
        saved.save(
            step, {"network/weight": torch.full((40000,), 1.0), "average/weight": torch.tensor([1.0, value])}, {"state": {"step": step}}
        )
    assert [path.name for path in saved.paths()] == ["step-000000000002.safetensors", "step-000000000004.nonfinite.safetensors"]
    weights, step = saved.finite_weights()
    assert (weights["weight"].tolist(), step) == ([1.0, 1.0], 2)
    saved.save(5, TENSORS, {"state": {"step": 5}})
    assert [path.name for path in saved.paths()] == ["step-000000000005.safetensors"]


ROWS: list[Row] = [{"step": step, "train/objective": 1 / step} for step in range(1, 30)]


def with_rows(step: int) -> dict[str, object]:
    return {"step": step, "progress": {"rows": ROWS, "num_rows": step}}


def step_found(checkpoints: checkpoint.Checkpoints) -> int:
    """Return the step of the newest checkpoint, whose rows must be those up to this step."""
    found = checkpoints.newest()
    assert found is not None
    step: int = found[1]["step"]
    assert found[1]["progress"]["rows"] == ROWS[:step]
    return step


def test_a_save_appends_the_new_rows_and_each_kept_checkpoint_finds_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also after a kill in the middle of an append, and after damage of the rows that only the newest checkpoint has."""
    saved = checkpoint.Checkpoints(tmp_path, kept=2)
    for step in (10, 20):
        saved.save(step, TENSORS, with_rows(step))
    with saved.history.path.open("ab") as file:
        file.write(b'{"step": 21, "tr')
    resumed = checkpoint.Checkpoints(tmp_path, kept=2)
    assert step_found(resumed) == 20
    resumed.save(25, TENSORS, with_rows(25))
    assert resumed.history.path.read_bytes().count(b"\n") == 25
    damaged = bytearray(resumed.history.path.read_bytes())
    damaged[-9] ^= 1
    resumed.history.path.write_bytes(damaged)
    assert step_found(checkpoint.Checkpoints(tmp_path, kept=2)) == 20
    warning = f"step-000000000025.damaged: the previous checkpoint is used, if there is one ({resumed.history.path}: lacks rows of it"
    assert warning in capsys.readouterr().out


@pytest.mark.parametrize("spoil", [os.unlink, lambda path: os.truncate(path, 5)], ids=["removed", "cut"])
def test_a_file_of_rows_that_is_spoiled_during_the_training_is_written_again(tmp_path: Path, spoil) -> None:
    saved = checkpoint.Checkpoints(tmp_path, kept=2)
    saved.save(10, TENSORS, with_rows(10))
    spoil(saved.history.path)
    saved.save(11, TENSORS, with_rows(11))
    assert step_found(checkpoint.Checkpoints(tmp_path, kept=2)) == 11


def test_the_size_of_a_checkpoint_does_not_depend_on_the_number_of_rows(tmp_path: Path) -> None:
    saved = checkpoint.Checkpoints(tmp_path, kept=2)
    for step in (10, 29):
        saved.save(step, TENSORS, with_rows(step))
    sizes = [path.stat().st_size for path in saved.paths()]
    assert abs(sizes[0] - sizes[1]) <= 8


def test_a_checkpoint_with_its_rows_in_the_header_as_earlier_versions_wrote_it_is_read(tmp_path: Path) -> None:
    tensor_file.save(tmp_path / "step-000000000010.safetensors", TENSORS, {"step": 10, "progress": {"rows": ROWS[:10]}})
    resumed = checkpoint.Checkpoints(tmp_path, kept=2)
    assert step_found(resumed) == 10
    resumed.save(12, TENSORS, with_rows(12))
    assert step_found(checkpoint.Checkpoints(tmp_path, kept=2)) == 12


@pytest.mark.parametrize(("exported", "step"), [("best", 3), ("average", 7), ("network", 7)])
def test_the_weights_of_a_checkpoint_have_the_step_at_which_they_were_taken(exported: str, step: int) -> None:
    tensors = {"manifest": torch.frombuffer(bytearray(b"{}"), dtype=torch.uint8), f"{exported}/w": torch.ones(1)}
    metadata = {"progress": {"best_step": 3}, "state": {"step": 7}, "frozen": False}
    _, manifest = checkpoint.as_model(tensors, metadata, Path("a"))
    assert manifest == {"step": step}
