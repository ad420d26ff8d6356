"""The speed run beside airbench: ours on a CPU, and what goes to airbench and comes back from it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import speedrun
from benchmarks.speedrun import Trained
from pipeline.machine import Machine
from tests.laws.test_resuming import MUON, SPEEDY

HERE = Machine(torch.device("cpu"), torch.get_num_threads())
PRINTED = """\
-------------------------------------------------------------------------------------------
|  run     |  epoch  |  train_loss  |  train_acc  |  val_acc  |  tta_val_acc  |  total_time_seconds  |
-------------------------------------------------------------------------------------------
|       7  |      0  |      1.5013  |     0.5557  |   0.6012  |               |              0.3421  |
|          |      1  |      1.1960  |     0.7090  |   0.7120  |               |              0.6840  |
|          |   eval  |      1.1960  |     0.7090  |   0.7120  |       0.9402  |              3.4821  |
-------------------------------------------------------------------------------------------
"""


def test_our_run_trains_from_its_seed_to_a_score_of_the_test_split(train_params, prepared) -> None:
    prepared = replace(prepared, splits={**prepared.splits, "test": prepared.splits["train"]})
    params = train_params({"model": SPEEDY, "optimizer": MUON, "train.epochs": None, "train.steps": 30})
    first, again = (speedrun.ours(params, prepared, HERE) for _ in range(2))
    assert first.accuracy == again.accuracy > 0.5  # three classes
    assert 0 < again.elapsed_s < 60
    untrained = speedrun.ours(train_params({"model": SPEEDY, "optimizer": MUON, "train.epochs": None, "train.steps": 1}), prepared, HERE)
    assert untrained.accuracy < first.accuracy


def test_airbench_is_given_the_same_images(prepared, tmp_path: Path) -> None:
    prepared = replace(prepared, splits={**prepared.splits, "test": prepared.splits["valid"]})
    speedrun.write_for_airbench(prepared, tmp_path / "cifar10")
    for name, file in (("train", "train.pt"), ("test", "test.pt")):
        found, split = torch.load(tmp_path / "cifar10" / file, weights_only=True), prepared.splits[name]
        assert torch.equal(found["images"], torch.from_numpy(split.inputs))
        assert torch.equal(found["labels"], torch.from_numpy(split.targets))
        assert found["classes"] == list(prepared.spec.classes)


def test_of_what_airbench_prints_the_last_row_is_read() -> None:
    assert speedrun.last_row(PRINTED) == Trained(0.9402, 3.4821)
    with pytest.raises(SystemExit, match="airbench printed another table"):
        speedrun.last_row(PRINTED.replace("eval", "done"))


def test_the_table_compares_run_by_run() -> None:
    found = {"pipeline": [Trained(0.94, 2.0), Trained(0.95, 3.0)], "airbench": [Trained(0.93, 4.0), Trained(0.93, 3.0)]}
    lines = speedrun.table(found).splitlines()
    assert lines[2] == "| pipeline | 0.9450 | 0.0050 | 2.500 | 2.000 | 3.000 |"
    assert lines[3] == "| airbench | 0.9300 | 0.0000 | 3.500 | 3.000 | 4.000 |"
    assert lines[-1] == "pipeline by airbench, time: 0.750 (0.500 to 1.000)"


@pytest.mark.parametrize(("runs", "said"), [("1", "--runs: two at least"), ("2", "airbench trains on a CUDA GPU, and there is none")])
def test_what_cannot_be_compared_is_refused(runs: str, said: str, monkeypatch, capsys) -> None:
    monkeypatch.setenv("PIPELINE_DEVICE", "cpu")
    monkeypatch.setattr("sys.argv", ["speedrun", "data/prepared", "--runs", runs])
    with pytest.raises(SystemExit, match="2"):
        speedrun.main()
    assert said in capsys.readouterr().err
