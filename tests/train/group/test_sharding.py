"""`train.sharding: full`: each process keeps a share of the weights, and the result is that of whole weights."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn

from pipeline.core.params import from_data
from pipeline.core.prepared import Prepared
from pipeline.core.refusal import Refusal
from pipeline.inference import precision
from pipeline.inference.tensor_file import Tensors
from pipeline.train.beginning import begin_state
from pipeline.train.group import sharding
from pipeline.train.group.processes import Several
from pipeline.train.params import TrainParams
from tests import project, texts
from tests.conftest import preset
from tests.train.group.several import TIMEOUT_S, Run, train

SGD = {"name": "sgd", "learning_rate": 0.05, "weight_decay": 0.01, "bias_lr_scale": 2.0, "layer_decay": None, "groups": []}
ADAMW = {**SGD, "name": "adamw", "learning_rate": 0.01, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8}
MOMENTUM = {**SGD, "momentum": 0.9, "nesterov": True}
RESNET = {"name": "resnet", "weights": None, "width": 8, "depth": 10}
LANGUAGE_MODEL = {**texts.TRANSFORMER_LANGUAGE_MODEL, "dropout": 0.0}


def params(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the sections of a training with micro-batches, an EMA and a validation after each step, with `changes`."""
    found = preset(
        {
            "optimizer": ADAMW,
            "schedule": {"name": "constant", "warmup_ratio": 0.0},
            "train.epochs": None,
            "train.steps": 6,
            "train.batch_size": 16,
            "train.micro_batch_size": 4,
            "train.sharding": "full",
            "train.ema_decay": 0.9,
            "train.export_weights": "best",
            "train.report_every_steps": 1,
            "train.validate_every_steps": 1,
            **texts.UNAUGMENTED,
            **changes,
        }
    )
    return {name: found[name] for name in TrainParams.model_fields}


def difference(first: Tensors, second: Tensors) -> float:
    """Return the largest difference between two values."""
    assert {name: tensor.dtype for name, tensor in first.items()} == {name: tensor.dtype for name, tensor in second.items()}
    return max(float((first[name].double() - second[name].double()).abs().max()) for name in first)


def test_steps_in_float64_are_those_of_one_process_also_after_checkpoints_of_other_numbers_of_processes(tmp_path: Path) -> None:
    """A training of two processes is resumed by two, with recomputed activations, and by one."""
    settings = params({"model": LANGUAGE_MODEL, "train.clip_norm": 0.1, "train.export_weights": "last"})
    corpus = texts.corpus()
    straight, _, resumed = train(
        2,
        Run(settings, corpus, tmp_path / "straight", 3, double=True),
        Run(settings, corpus, tmp_path / "moved", 1, double=True),
        Run({**settings, "train": {**settings["train"], "activation_checkpointing": True}}, corpus, tmp_path / "moved", 3, double=True),
    )
    moved, alone = train(
        1,
        Run(settings, corpus, tmp_path / "moved", 6, double=True),
        Run(settings, corpus, tmp_path / "alone", 6, double=True),
    )
    assert difference(straight.state, resumed.state) == 0
    assert resumed.share < 0.55
    assert moved.share == 1.0
    for part in ("state", "exported"):
        assert difference(getattr(moved, part), getattr(alone, part)) < 1e-12
        assert list(getattr(moved, part)) == list(getattr(alone, part))
    assert moved.rows == [pytest.approx(row, abs=1e-7) for row in alone.rows]


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [(0, 3), (1, 2, 4)], ids=["float32", "others"])
def test_divided_weights_give_the_bytes_of_whole_weights(tmp_path: Path, prepared: Prepared, chosen: tuple[int, ...]) -> None:
    """With BatchNorm, dropout, an EMA, frozen and tied weights. In bf16, gradients are added in float32, so they differ by rounding."""
    resnet = (prepared, {"model": RESNET, "train.activation_checkpointing": True, "train.freeze": ["2.*"]})
    language_model = (texts.corpus(), {"model": texts.TRANSFORMER_LANGUAGE_MODEL})
    bf16_true = {"train.precision": "bf16-true", "train.ema_decay": 0.0}
    variants = [
        (*resnet, {}, 0.0),
        (*resnet, bf16_true, 0.1),
        (texts.texts(), {"model": texts.LSTM}, {}, 0.0),
        (*language_model, {}, 0.0),
        (*language_model, {"train.precision": "bf16"}, 1e-6),
    ]
    variants = [variants[number] for number in chosen]
    runs = [
        Run(
            params({"optimizer": MOMENTUM, "train.clip_norm": None, **changes, **more, "train.sharding": mode}),
            samples,
            tmp_path / f"{mode}-{number}",
            1,
        )
        for number, (samples, changes, more, _) in enumerate(variants)
        for mode in ("full", "none")
    ]
    ends = train(2, *runs)
    for full, whole, (_, changes, more, tolerance) in zip(ends[::2], ends[1::2], variants, strict=True):
        assert full.share < 0.55 < whole.share
        assert difference(full.state, whole.state) <= tolerance, (changes, more)
    is_bf16 = torch.bfloat16 in {tensor.dtype for name, tensor in ends[0].state.items() if name.startswith("optimizer/")}
    assert is_bf16 == (chosen[0] == 1), "bf16-true"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.lanes": 2}, r"train\.sharding: `full` works with one lane only: write `train\.lanes: 1`"),
        ({"train.precision": "fp16"}, r"train\.precision: cannot be combined with train\.sharding: full: write `train\.precision: auto`"),
        ({"train.compile": "default"}, r'train\.compile: cannot be combined .* write `train\.compile: "off"`'),
        ({"train.channels_last": True}, r"train\.channels_last: cannot be combined .* write `train\.channels_last: false`"),
        ({"train.on_nonfinite": "skip"}, r"train\.on_nonfinite: cannot be combined .* write `train\.on_nonfinite: stop`"),
    ],
)
def test_what_divided_weights_cannot_do_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Refusal, match=message):
        from_data(params({"model": RESNET, **changes}), TrainParams, "test")


def test_muon_is_refused() -> None:
    speedrun = preset({"train.sharding": "full", "train.channels_last": False, "train.compile": "off"}, "cifar10-speedrun")
    with pytest.raises(Refusal, match=r"train: sharding: full divides the matrices that muon orthogonalises"):
        from_data({name: speedrun[name] for name in TrainParams.model_fields}, TrainParams, "test")


def test_an_old_gpu_that_would_train_in_fp16_is_refused(prepared: Prepared, monkeypatch: pytest.MonkeyPatch, cpu: torch.device) -> None:
    monkeypatch.setattr(precision, "choose", lambda *_: "fp16")
    with pytest.raises(Refusal, match=r"train\.precision: fp16 does not work with train\.sharding: full"):
        begin_state(
            from_data(params({"model": RESNET}), TrainParams, "test"), prepared, cpu, Several(0, 2, store=dist.HashStore(), control=None)
        )


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


def test_a_network_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(Refusal, match=r"train\.sharding: the parameter scale is a scalar"):
        sharding.refuse_undivided(Scaled(), [])
    first, second = (nn.Sequential(nn.Linear(2, 2)) for _ in range(2))
    sharding.refuse_undivided(nn.Sequential(first, second), [first, second])
    second[0].weight = first[0].weight
    with pytest.raises(Refusal, match=r"train\.sharding: the parameter 0\.weight of a block is also used outside this block"):
        sharding.refuse_undivided(nn.Sequential(first, second), [first, second])


def stage(folder: Path, name: str, processes: int) -> subprocess.Popen[bytes]:
    variables = {"PIPELINE_TRACKING": "false", "PIPELINE_PROCESSES": str(processes), "PIPELINE_CHECKPOINT_EVERY_STEPS": "5"}
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline", name], cwd=folder, env={**os.environ, **variables}, stdout=log, stderr=log
        )


@pytest.mark.slow
def test_a_stopped_training_of_two_processes_ends_in_the_bytes_of_an_uninterrupted_one(tmp_path: Path) -> None:
    project.make(tmp_path, {"train.sharding": "full", "train.steps": 120, "train.export_weights": "best", "train.ema_decay": 0.9})
    assert stage(tmp_path, "prepare", 1).wait(TIMEOUT_S) == 0
    assert stage(tmp_path, "train", 2).wait(TIMEOUT_S) == 0
    model = tmp_path / "models/model.safetensors"
    expected = model.read_bytes()
    model.unlink()
    stopped = stage(tmp_path, "train", 2)
    deadline_s = time.monotonic() + TIMEOUT_S
    while not list(tmp_path.glob(".pipeline/work/*/step-*")):
        assert time.monotonic() < deadline_s, (tmp_path / "train.log").read_text()
        time.sleep(0.05)
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(TIMEOUT_S) == 128 + signal.SIGTERM
    assert stage(tmp_path, "train", 2).wait(TIMEOUT_S) == 0
    assert model.read_bytes() == expected
    assert "resuming after step" in (tmp_path / "train.log").read_text()
