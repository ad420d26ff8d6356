"""The verdict of `profile` flips when data, host or model is made slow.

The effects are many times the rest of a step.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, replace

import pytest
import torch

from pipeline.inference.batches import loader
from pipeline.tools.profile import profile, shares
from pipeline.tools.profile.profile import Profile, profile_training
from tests import texts
from tests.tools.profile.conftest import CPU, LOOP

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
    assert "Most of the time, steps wait for data (" in "\n".join(profiled_with("data", setup).lines())


def test_slow_augmentation_is_slow_data(setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs when the micro-batches are made, not when the batch is read."""
    original = loader.Block.gather
    monkeypatch.setattr(loader, "BLOCK_BATCHES", 1)
    monkeypatch.setattr(loader.Block, "gather", lambda block, positions: (busy(None), original(block, positions))[1])
    profiled_with("data", setup)


def test_slow_python_code_is_named(setup, before_each_forward) -> None:
    before_each_forward(busy)
    profiled_with("host", setup)


def test_a_host_that_sleeps_is_idle(setup, before_each_forward, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for a CPU that other programs use counts as host overhead."""
    monkeypatch.setattr(shares, "cpu_wait_s", lambda: 0.0)
    before_each_forward(lambda _: time.sleep(SLOW_S))
    profiled_with("idle", setup)


def test_a_slow_model_is_named(setup, before_each_forward) -> None:
    before_each_forward(multiply)
    result = profiled_with("computing", setup)
    first = next(line for line in result.traced.operations.splitlines() if " aten::" in line)
    assert "aten::mm " in first


def test_the_profile_tells_everything_that_was_measured(train_params, prepared) -> None:
    result = profile_training(train_params({"train.batch_size": 16, "train.micro_batch_size": 4}), prepared, CPU, steps=11)
    text = "\n".join(result.lines())
    assert "mlp on cpu" in text
    assert "in fp32, 16 samples in micro-batches of 4" in text
    assert "(15 steps after warm-up" in text, "a multiple of the blocks"
    for name in profile.NAMES.values():
        assert name in text
    assert result.traced.operations in text
    assert "memory: " in text
    assert sum(asdict(result.shares).values()) == pytest.approx(1)
    assert result.memory_bytes > 50e6
    crowded, alone = (replace(result, timed=replace(result.timed, cpu_wait_s=share * result.timed.step_s)) for share in (0.5, 0.0))
    assert "Other processes use the CPUs: for 50% of the time" in "\n".join(crowded.lines())
    assert "Other processes" not in "\n".join(alone.lines())


def test_a_model_of_texts_is_profiled(train_params) -> None:
    result = profile_training(train_params({"model": texts.LSTM, **texts.UNAUGMENTED, **LOOP}), texts.texts(), CPU, steps=5)
    assert "lstm on cpu" in result.title
