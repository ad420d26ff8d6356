"""Tests of the comparison with airbench: the pipeline's run on a CPU, airbench's input and output, and the order of runs."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks import speedrun
from benchmarks.speedrun import Trained
from pipeline.core.prepared import Prepared
from pipeline.core.refusal import Refusal
from pipeline.inference.machine import Machine, set_determinism
from pipeline.train.training import Training
from tests.laws.test_resuming import AIRBENCH, MUON
from tests.specs import image_spec

MACHINE = Machine(torch.device("cpu"), torch.get_num_threads())
GPU = Machine(torch.device("cuda", 0), 2)
PRINTED = """\
-------------------------------------------------------------------------------------------
|  run     |  epoch  |  train_loss  |  train_acc  |  val_acc  |  tta_val_acc  |  total_time_seconds  |
-------------------------------------------------------------------------------------------
|       7  |      0  |      1.5013  |     0.5557  |   0.6012  |               |              0.3421  |
|          |      1  |      1.1960  |     0.7090  |   0.7120  |               |              0.6840  |
|          |   eval  |      1.1960  |     0.7090  |   0.7120  |       0.9402  |              3.4821  |
-------------------------------------------------------------------------------------------
"""


@pytest.fixture
def tested(prepared: Prepared) -> Iterator[Prepared]:
    """Data with a train and a test split."""
    yield replace(prepared, splits={"train": prepared.splits["train"], "test": prepared.splits["train"]})
    set_determinism(False)


def test_a_run_of_the_pipeline_depends_on_its_seed_only_and_learns(train_params, tested) -> None:
    changes = {"model": AIRBENCH, "optimizer": MUON, "train.epochs": None, "train.export_weights": "last"}
    params = train_params(changes | {"train.steps": 30})
    first, again = (speedrun.train_pipeline(params, tested, MACHINE) for _ in range(2))
    assert first.accuracy == again.accuracy > 0.5  # three classes
    assert again.elapsed_s > 0
    assert again.before_s > 0
    assert speedrun.train_pipeline(train_params(changes | {"train.steps": 1}), tested, MACHINE).accuracy < first.accuracy


def test_a_run_with_smaller_micro_batches_is_refused(train_params, tested, monkeypatch) -> None:
    monkeypatch.setattr(Training, "reports", lambda training: iter([training.progress.change_micro_batch(1, 3)]))
    with pytest.raises(Refusal, match="smaller micro-batches, because the GPU's memory ran out"):
        speedrun.train_pipeline(train_params({}), tested, MACHINE)


def test_airbench_gets_the_same_images_shuffled(tested, tmp_path: Path) -> None:
    rows = np.argsort(tested.splits["train"].targets, kind="stable")
    train = replace(tested.splits["train"], inputs=tested.splits["train"].inputs[rows], targets=tested.splits["train"].targets[rows])
    speedrun.write_for_airbench(replace(tested, splits={**tested.splits, "train": train}), tmp_path / "cifar10")
    found = torch.load(tmp_path / "cifar10/train.pt", weights_only=True)
    assert len(set(found["labels"][:10].tolist())) > 1
    assert sorted(zip(found["labels"].tolist(), found["images"].flatten(1).tolist(), strict=True)) == sorted(
        zip(train.targets.tolist(), train.inputs.reshape(len(train), -1).tolist(), strict=True)
    )
    assert found["classes"] == list(tested.spec.targets.classes)
    assert len(torch.load(tmp_path / "cifar10/test.pt", weights_only=True)["labels"]) == len(tested.splits["test"])


def test_airbench_runs_with_torchs_default_flags_in_its_folder(monkeypatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = []

    def train94(run: int) -> None:
        flags = torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32, torch.are_deterministic_algorithms_enabled()
        seen.append((run, flags, torch.initial_seed(), Path.cwd()))
        print(PRINTED)

    monkeypatch.setitem(sys.modules, "airbench", SimpleNamespace(train94=train94))
    before = Path.cwd()
    set_determinism(True)
    assert speedrun.train_airbench(5, tmp_path) == Trained(0.9402, 3.4821)
    assert seen == [(5, (True, False, False), 5, tmp_path.resolve())]
    assert Path.cwd() == before
    assert not capsys.readouterr().out
    set_determinism(False)
    assert (torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32) == (False, True)


@pytest.mark.slow
def test_the_first_run_of_each_is_discarded_and_the_order_alternates() -> None:
    order: list[tuple[str, int]] = []

    def contestant(name: str):
        def train(run: int) -> Trained:
            order.append((name, run))
            return Trained(0.9, float(run))

        return train

    found = speedrun.in_turn({name: contestant(name) for name in ("pipeline", "airbench")}, 2)
    assert order == [("pipeline", 0), ("airbench", 0), ("airbench", 1), ("pipeline", 1), ("pipeline", 2), ("airbench", 2)]
    assert {name: [run.elapsed_s for run in runs] for name, runs in found.items()} == {"pipeline": [1.0, 2.0], "airbench": [1.0, 2.0]}


def test_the_table_compares_run_by_run() -> None:
    found = {"pipeline": [Trained(0.94, 2.0, 1.0), Trained(0.95, 3.0, 1.5)], "airbench": [Trained(0.93, 4.0), Trained(0.93, 3.0)]}
    assert speedrun.table(found).splitlines()[2:] == [
        "| pipeline | 0.9450 | 0.0050 | 2.500 | 2.000 | 3.000 |",
        "| airbench | 0.9300 | 0.0000 | 3.500 | 3.000 | 4.000 |",
        "| steps and scoring / airbench | | | 0.750 | 0.500 | 1.000 |",
        "| with setup / airbench | | | 1.125 | 0.750 | 1.500 |",
    ]


def test_unfit_data_or_device_is_refused(prepared, tested) -> None:
    cifar = replace(tested, spec=image_spec(shape=(32, 32, 3), classes="abcdefghij", mean=(0.5,) * 3, std=(0.2,) * 3))
    speedrun.refuse_unfit(cifar, GPU)
    for device in (MACHINE, replace(GPU, device=torch.device("cuda", 1))):
        with pytest.raises(Refusal, match="airbench trains on the first CUDA GPU, and this is c"):
            speedrun.refuse_unfit(cifar, device)
    with pytest.raises(Refusal, match=r"10 classes of \(32, 32, 3\), these are 3 of \(8, 8, 1\)"):
        speedrun.refuse_unfit(tested, GPU)
    with pytest.raises(Refusal, match=r"set source\.valid to 0"):
        speedrun.refuse_unfit(replace(cifar, splits=prepared.splits), GPU)
