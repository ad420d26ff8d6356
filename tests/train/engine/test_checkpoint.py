"""The newest states of a training: how many stay, and which is used."""

import os
from pathlib import Path

import pytest
import torch

from pipeline.core.refusal import Refusal
from pipeline.train.engine import checkpoint

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
