"""The verdict of `profile` flips when data, host or model is made slow, and the sentence about it fits the situation.

The effects are many times the rest of a step.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, replace

import pytest
import torch

from pipeline.inference.batches import loader
from pipeline.inference.machine import Machine
from pipeline.tools.profile import profile
from pipeline.tools.profile.profile import Profile, Situation, profile_training
from pipeline.tools.profile.shares import Shares
from tests import texts
from tests.models.text_models import ENCODING, RECURRENT
from tests.tools.profile.conftest import CPU

SLOW_S = 0.02


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "WARMUP_STEPS", 2)
    monkeypatch.setattr(profile, "MOST_TRACED", 3)


def busy(_: object) -> None:
    """Run Python code for SLOW_S seconds of CPU time."""
    end_s = time.process_time() + SLOW_S
    while time.process_time() < end_s:
        pass


def multiply(_: object) -> None:
    matrix = torch.ones(700, 700)
    torch.mm(matrix, matrix)


def profiled_with(largest: str, setup) -> Profile:
    result = profile_training(*setup, steps=5)
    assert result.shares.largest == largest
    assert getattr(result.shares, largest) > 0.5
    assert result.shares.copying == 0
    return result


def test_slow_data_is_named(setup, monkeypatch: pytest.MonkeyPatch) -> None:
    original = loader.training

    def slow(*arguments, **keywords) -> Iterator:
        for batch in original(*arguments, **keywords):
            time.sleep(SLOW_S)
            yield batch

    monkeypatch.setattr(loader, "training", slow)
    assert profiled_with("data", setup).advice.startswith("Most of the time, steps wait for data (")


def test_slow_augmentation_is_slow_data(setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs when the micro-batches are made, not when the batch is read."""
    original = loader.Block.gather
    monkeypatch.setattr(loader, "BLOCK_BATCHES", 1)
    monkeypatch.setattr(loader.Block, "gather", lambda block, positions: (busy(None), original(block, positions))[1])
    profiled_with("data", setup)


def test_slow_python_code_is_named(setup, before_each_forward) -> None:
    before_each_forward(busy)
    assert profiled_with("host", setup).advice.startswith("Most of the time, the CPU runs Python code between the operations (")


def test_a_host_that_sleeps_is_idle(setup, before_each_forward) -> None:
    before_each_forward(lambda _: time.sleep(SLOW_S))
    assert profiled_with("idle", setup).advice.startswith("Most of the time, this process does nothing (")


def test_a_slow_model_is_named(setup, before_each_forward) -> None:
    before_each_forward(multiply)
    result = profiled_with("computing", setup)
    assert result.advice.startswith("Most of the time, the CPU computes")
    assert result.traced.operations[0].name == "aten::mm"


def test_the_profile_tells_everything_that_was_measured(train_params, prepared) -> None:
    result = profile_training(train_params({"train.batch_size": 16, "train.micro_batch_size": 4}), prepared, CPU, steps=11)
    text = "\n".join(result.lines())
    assert "mlp on cpu" in text
    assert "in fp32, 16 samples in micro-batches of 4" in text
    assert "(15 steps after warm-up" in text, "a multiple of the blocks"
    for name in profile.NAMES.values():
        assert name in text
    assert len(result.traced.operations) == 10
    assert all(each.name in text for each in result.traced.operations)
    assert "memory: " in text
    assert sum(asdict(result.shares).values()) == pytest.approx(1)
    assert result.memory_bytes > 50e6
    crowded, alone = (replace(result, timed=replace(result.timed, cpu_wait_s=share * result.timed.step_s)) for share in (0.5, 0.0))
    assert "Other processes use the CPUs: for 50% of the time" in "\n".join(crowded.lines())
    assert "Other processes" not in "\n".join(alone.lines())


def test_a_model_of_texts_is_profiled(train_params) -> None:
    model = RECURRENT | ENCODING | {"bidirectional": True, "pooling": "mean"}
    params = train_params({"model": model, "augment": None, "train.batch_size": 16, "train.micro_batch_size": 16})
    result = profile_training(params, texts.texts(), CPU, steps=5)
    assert "lstm on cpu" in result.title
    assert result.title.endswith("16 samples")
    assert "augment" not in result.advice


PRECISION = {"train.precision": "fp32"}
COMPILED = {"train.compile": "default", "train.channels_last": True}
COSTLY = {"augment.brightness": 0.3, "augment.mixup": 0.2}


@pytest.mark.parametrize(
    ("largest", "device", "resident", "changes", "expected"),
    [
        ("data", "cpu", False, {}, "put data/prepared on a faster disk"),
        ("data", "cpu", True, COSTLY, "costly augmentations (augment.brightness, augment.mixup), or set PIPELINE_THREADS=8"),
        ("data", "cpu", True, {"augment": None}, "or set PIPELINE_THREADS=8, because it uses 2 of 8 CPUs"),
        ("copying", "cuda", False, {}, "it is then held on the GPU"),
        ("copying", "cuda", True, {}, "use a larger train.batch_size"),
        ("computing", "cuda", True, PRECISION, "`train.precision: auto`, `train.channels_last: true`, `train.compile: default`"),
        ("computing", "cuda", True, COMPILED, "computes, as it should (100%): use a faster GPU or a smaller model."),
        (
            "computing",
            "cpu",
            True,
            {"train.compile": "default", "train.channels_last": "auto"},
            "use a GPU or a smaller model, or set PIPELINE_THREADS=8",
        ),
        ("host", "cuda", True, {}, "`train.compile: graphs`"),
        ("host", "cuda", True, {"train.lanes": 2}, "`train.compile: default`"),
        ("host", "cpu", True, {"train.micro_batch_size": 8}, "a larger train.micro_batch_size"),
        ("host", "cpu", True, {"train.report_every_steps": 1}, "fewer reports"),
    ],
)
def test_the_remedy_fits_the_situation(train_params, monkeypatch, largest, device, resident, changes, expected) -> None:
    monkeypatch.setattr(profile.limits, "usable_cpus", lambda: 8)
    situation = Situation(train_params(changes), Machine(torch.device(device), 2), is_resident=resident, suits_channels_last=True)
    sentence = profile.sentence(Shares(**dict.fromkeys(("data", "copying", "computing", "host", "idle"), 0.0) | {largest: 1.0}), situation)
    assert expected in sentence
    assert sentence.startswith("Most of the time, ")
    assert sentence.endswith(".")
    if largest == "computing":
        slower = profile.sentence(Shares(0, 0, 1, 0, 0), situation._replace(suits_channels_last=False))
        assert ("`train.channels_last: false`" in slower) == (situation.params.train.channels_last is True)
