"""The comparison of options: what is measured, what is impossible and why, and what is printed."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pipeline.__main__ import main
from pipeline.inference.machine import Machine
from pipeline.tools.profile import profile
from pipeline.tools.profile.profile import CONFIGURED
from tests import project, texts
from tests.tools.profile.conftest import LOOP
from tests.train.engine.building import HERE


def names(options) -> list[str]:
    return [f"{key}: {value}" for key, value in options]


def test_options_are_what_the_training_does_not_do_yet(train_params, prepared) -> None:
    found = names(profile.options(train_params({}), prepared, HERE, channels_last=False))
    assert found == [
        *("precision: bf16", "precision: fp16", "precision: bf16-true", "channels_last: True", "compile: default"),
        *("deterministic: False", "micro_batch_size: 32"),
    ]
    others = {"precision": "bf16", "channels_last": True, "compile": "default", "deterministic": False}
    changes = {f"train.{name}": value for name, value in others.items()}
    found = names(profile.options(train_params(changes), prepared, HERE, channels_last=True))
    assert {"precision: fp32", "channels_last: False", "compile: off", "deterministic: True"} <= {*found}
    assert "channels_last: True" not in names(profile.options(train_params({}), texts.texts(), HERE, channels_last=False))


@pytest.mark.parametrize(
    ("changes", "sizes"), [({}, [8]), ({"train.micro_batch_size": 4}, [2, 16]), ({"train.micro_batch_size": 4, "train.lanes": 2}, [2, 8])]
)
def test_half_of_the_micro_batch_and_last_the_whole_batch_are_options(train_params, prepared, changes: dict[str, object], sizes) -> None:
    found = names(profile.options(train_params({**LOOP, **changes}), prepared, HERE, channels_last=False))
    assert found[-len(sizes) :] == [f"micro_batch_size: {size}" for size in sizes]


def test_on_a_gpu_graphs_are_an_option(train_params, prepared) -> None:
    found = names(profile.options(train_params({}), prepared, Machine(torch.device("cuda", 0), 1), channels_last=False))
    assert {"compile: graphs", "precision: fp32"} <= {*found}, "auto is another precision on a GPU"


@pytest.fixture
def printed(params, prepared, monkeypatch, capsys) -> Callable[..., str]:
    """`printed(*options)`: what is printed for these options."""

    def run(*chosen: tuple[str, object]) -> str:
        monkeypatch.setattr(profile, "ROUND_S", 0.01)
        monkeypatch.setattr(profile, "options", lambda *_, **__: iter(chosen))
        profile.print_comparison(params, prepared, HERE)
        return capsys.readouterr().out

    return run


def test_every_option_is_measured_with_its_own_determinism_or_has_a_reason(printed, monkeypatch) -> None:
    deterministic, time_block = list[bool](), profile.time_block

    def timed(*arguments) -> float:
        deterministic.append(torch.are_deterministic_algorithms_enabled())
        return time_block(*arguments)

    monkeypatch.setattr(profile, "time_block", timed)
    rows = printed(("channels_last", True), ("precision", "bf16-true"), ("deterministic", False)).splitlines()[3:7]
    assert [re.split(r" {2,}\| ", row)[0] for row in rows] == [
        *("| as configured", "| channels_last: true", "| precision: bf16-true", "| deterministic: false")
    ]
    assert ["not available: train." in row for row in rows] == [False, False, True, False]
    assert deterministic == [*[True] * 15, *[True, False, False, True] * 2, True, False]
    torch.set_deterministic_debug_mode("default")


def test_an_option_that_runs_out_of_memory_is_not_compared(printed, before_each_forward) -> None:
    def limited(inputs: torch.Tensor) -> None:
        if len(inputs) == 8:
            raise torch.OutOfMemoryError("CUDA out of memory")

    before_each_forward(limited)
    assert "not available: out of memory" in printed(("micro_batch_size", 8))


def test_speeds_are_ratios_and_only_options_that_were_faster_in_every_round_are_named(printed, monkeypatch) -> None:
    seconds = {"compile: default": [0.5, 0.5, 0.4, 0.5, 0.5], "deterministic: false": [2.0, 0.9, 1.9, 2.1, 2.0]}
    monkeypatch.setattr(
        profile,
        "interleaved",
        lambda blocks, _: {CONFIGURED: [1.0] * 5} | {name: seconds.get(name) for name in blocks if name != CONFIGURED},
    )
    output = printed(("deterministic", False), ("compile", "default"))
    assert "| deterministic: false            | 2000.00    | 8          | 0.50 (0.48 to 1.11)    |\n" in output
    assert "| compile: default                | 500.00     | 32         | 2.00 (2.00 to 2.50)    |\n" in output
    assert output.endswith(" Faster in every round: compile: default (2.00 times as fast).\n")


def test_the_verb_prints_the_rows(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(project.make(tmp_path))
    assert main(["prepare"]) == 0
    monkeypatch.setattr(profile, "options", lambda *_, **__: iter([("micro_batch_size", 2)]))
    monkeypatch.setattr(profile, "ROUND_S", 0.01)
    assert main(["profile", "--speedup"]) == 0
    assert "| micro_batch_size: 2 " in capsys.readouterr().out
