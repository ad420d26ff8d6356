"""The comparison of options: what is measured, what is impossible and why, and what is printed."""

from pathlib import Path

import pytest
import torch

from pipeline.__main__ import main
from pipeline.inference.machine import Machine
from pipeline.tools.profile import speedup
from pipeline.tools.profile.speedup import CONFIGURED, OptionSpeed
from pipeline.tools.profile.trial import Ratio
from tests import project, texts
from tests.tools.profile.conftest import LOOP
from tests.train.engine.building import HERE


def names(options) -> list[str]:
    return [f"{key}: {value}" for key, value in options]


def test_options_are_what_the_training_does_not_do_yet(train_params, prepared) -> None:
    found = names(speedup.options(train_params({}), prepared, HERE, channels_last=False))
    assert found == [
        *("precision: bf16", "precision: fp16", "precision: bf16-true", "channels_last: True", "compile: default"),
        *("deterministic: False", "micro_batch_size: 32"),
    ]
    others = {"precision": "bf16", "channels_last": True, "compile": "default", "deterministic": False}
    changes = {f"train.{name}": value for name, value in others.items()}
    found = names(speedup.options(train_params(changes), prepared, HERE, channels_last=True))
    assert {"precision: fp32", "channels_last: False", "compile: off", "deterministic: True"} <= {*found}
    assert "channels_last: True" not in names(speedup.options(train_params({}), texts.texts(), HERE, channels_last=False))


@pytest.mark.parametrize(
    ("changes", "sizes"), [({}, [8]), ({"train.micro_batch_size": 4}, [2, 16]), ({"train.micro_batch_size": 4, "train.lanes": 2}, [2, 8])]
)
def test_half_of_the_micro_batch_and_last_the_whole_batch_are_options(train_params, prepared, changes: dict[str, object], sizes) -> None:
    found = names(speedup.options(train_params({**LOOP, **changes}), prepared, HERE, channels_last=False))
    assert found[-len(sizes) :] == [f"micro_batch_size: {size}" for size in sizes]


def test_an_option_that_runs_out_of_memory_is_not_compared(params, prepared, before_each_forward, monkeypatch) -> None:
    def limited(inputs: torch.Tensor) -> None:
        if len(inputs) == 8:
            raise torch.OutOfMemoryError("CUDA out of memory")

    before_each_forward(limited)
    monkeypatch.setattr(speedup, "BLOCK_S", 0.01)
    monkeypatch.setattr(speedup, "options", lambda *_, **__: iter([("micro_batch_size", 8)]))
    *_, row = speedup.compare_options(params, prepared, HERE)
    assert row.obstacle == "out of memory"


def test_on_a_gpu_graphs_are_an_option(train_params, prepared) -> None:
    found = names(speedup.options(train_params({}), prepared, Machine(torch.device("cuda", 0), 1), channels_last=False))
    assert {"compile: graphs", "precision: fp32"} <= {*found}, "auto is another precision on a GPU"


def test_every_option_is_measured_with_its_own_determinism_or_has_a_reason(params, prepared, monkeypatch) -> None:
    monkeypatch.setattr(speedup, "BLOCK_S", 0.01)
    chosen = [("channels_last", True), ("precision", "bf16-true"), ("deterministic", False)]
    monkeypatch.setattr(speedup, "options", lambda *_, **__: iter(chosen))
    deterministic, time_block = list[bool](), speedup.time_block

    def timed(*arguments) -> float:
        deterministic.append(torch.are_deterministic_algorithms_enabled())
        return time_block(*arguments)

    monkeypatch.setattr(speedup, "time_block", timed)
    rows = {row.name: row for row in speedup.compare_options(params, prepared, HERE)}
    measured = {name for name, row in rows.items() if row.obstacle is None}
    assert measured == {CONFIGURED, "channels_last: true", "deterministic: false"}
    for name in measured - {CONFIGURED}:
        row = rows[name]
        assert row.step_s > 0
        assert row.speed.least <= row.speed.median <= row.speed.most
    assert rows["precision: bf16-true"].obstacle.startswith("train.")
    assert rows["precision: bf16-true"].cells(16)[3].startswith("not available: train.")
    assert deterministic == [*[True] * 15, *[True, False, False, True] * 2, True, False]
    torch.set_deterministic_debug_mode("default")


def test_an_option_that_is_twice_as_slow_is_half_as_fast(params, prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {CONFIGURED: [1.0, 1.0, 1.0, 1.0, 1.0], "deterministic: false": [2.0, 2.0, 1.9, 2.1, 2.0]}
    monkeypatch.setattr(speedup, "options", lambda *_, **__: iter([("deterministic", False)]))
    monkeypatch.setattr(speedup, "interleaved", lambda *_: seconds)
    monkeypatch.setattr(speedup, "BLOCK_S", 0.01)
    _, slow = speedup.compare_options(params, prepared, HERE)
    assert slow.step_s == 2.0
    assert slow.speed.median == 0.5


def test_the_table_names_only_options_that_were_faster_in_every_round(params, prepared, monkeypatch, capsys) -> None:
    rows = [
        OptionSpeed(CONFIGURED, 0.01),
        OptionSpeed("compile: default", 0.005, Ratio(2.0, 1.8, 2.2)),
        OptionSpeed("deterministic: false", 0.02, Ratio(1.3, 0.5, 1.6)),
        OptionSpeed("channels_last: true", obstacle="the inputs are not images"),
    ]
    monkeypatch.setattr(speedup, "compare_options", lambda *_: iter(rows))
    speedup.print_comparison(params, prepared, HERE)
    output = capsys.readouterr().out
    assert "| as configured                   | 10.00      | 1,600      | 1.00                   |\n" in output
    assert "| compile: default                | 5.00       | 3,200      | 2.00 (1.80 to 2.20)    |\n" in output
    assert "not available: the inputs are not images" in output
    assert output.endswith(" Faster in every round: compile: default (2.00 times as fast).\n")


def test_the_verb_prints_the_rows(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(project.make(tmp_path))
    assert main(["prepare"]) == 0
    monkeypatch.setattr(speedup, "options", lambda *_, **__: iter([("micro_batch_size", 2), ("lanes", 3)]))
    monkeypatch.setattr(speedup, "BLOCK_S", 0.01)
    assert main(["profile", "--speedup"]) == 0
    output = capsys.readouterr().out
    assert "| micro_batch_size: 2 " in output
    assert "not available: train." in output
    assert "Faster in every round: " in output
