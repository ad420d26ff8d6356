"""The comparison of options: what is measured, what is impossible and why, and what is printed."""

from pathlib import Path

import pytest
import torch

from pipeline.__main__ import main
from pipeline.inference.machine import Machine
from pipeline.tools.profile import speedup
from pipeline.tools.profile.speedup import CONFIGURED, Option, OptionSpeed
from pipeline.tools.profile.trial import Ratio
from tests import project, texts
from tests.tools.profile.conftest import LOOP
from tests.train.engine.building import HERE


def names(options) -> list[str]:
    return [option.name for option in options]


def test_options_are_what_the_training_does_not_do_yet(train_params, prepared) -> None:
    found = names(speedup.options(train_params({}), prepared, HERE, channels_last=False))
    assert found == [
        *("precision: bf16", "precision: fp16", "precision: bf16-true", "channels_last: true", "compile: default"),
        *("lanes: 2", "activation_checkpointing: true", "deterministic: false", "micro_batch_size: 32"),
    ]
    others = {"precision": "bf16", "channels_last": True, "lanes": 2, "compile": "default", "deterministic": False}
    changes = {f"train.{name}": value for name, value in others.items()}
    found = names(speedup.options(train_params(changes), prepared, HERE, channels_last=True))
    assert {"precision: fp32", "channels_last: false", "lanes: 1", "compile: off", "deterministic: true"} <= {*found}
    assert "channels_last: true" not in names(speedup.options(train_params({}), texts.texts(), HERE, channels_last=False))


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
    monkeypatch.setattr(speedup, "options", lambda *_, **__: iter([Option("micro_batch_size: 8", {"micro_batch_size": 8})]))
    *_, row = speedup.compare_options(params, prepared, HERE, steps=2)
    assert row.obstacle == "out of memory"


def test_on_a_gpu_graphs_are_an_option(train_params, prepared) -> None:
    found = names(speedup.options(train_params({}), prepared, Machine(torch.device("cuda", 0), 1), channels_last=False))
    assert {"compile: graphs", "precision: fp32"} <= {*found}, "auto is another precision on a GPU"


def test_every_option_is_measured_or_has_a_reason_and_determinism_ends_as_it_began(params, prepared, monkeypatch) -> None:
    monkeypatch.setattr(speedup, "BLOCK_S", 0.01)
    chosen = [
        Option("lanes: 2", {"lanes": 2}),
        Option("precision: bf16-true", {"precision": "bf16-true"}),
        Option("deterministic: false", {"deterministic": False}),
    ]
    monkeypatch.setattr(speedup, "options", lambda *_, **__: iter(chosen))
    rows = {row.name: row for row in speedup.compare_options(params, prepared, HERE, steps=3)}
    measured = {name for name, row in rows.items() if row.obstacle is None}
    assert measured == {CONFIGURED, "lanes: 2", "deterministic: false"}
    for name in measured:
        row = rows[name]
        assert row.step_s > 0
        assert row.speed.least <= row.speed.median <= row.speed.most
    assert rows["precision: bf16-true"].obstacle.startswith("train.")
    assert speedup.cells(rows["precision: bf16-true"], 16)[3].startswith("not available: train.")
    assert rows[CONFIGURED].speed == (1, 1, 1)
    assert params.train.deterministic
    assert torch.are_deterministic_algorithms_enabled()
    torch.set_deterministic_debug_mode("default")


def test_an_option_that_is_twice_as_slow_is_half_as_fast(params, prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {CONFIGURED: [1.0, 1.0, 1.0, 1.0, 1.0], "slow": [2.0, 2.0, 1.9, 2.1, 2.0]}
    monkeypatch.setattr(speedup, "options", lambda *_, **__: iter([Option("slow")]))
    monkeypatch.setattr(speedup.trials, "time_block", lambda *_: 1.0)
    monkeypatch.setattr(speedup.trials, "interleaved", lambda *_, **__: seconds)
    _, slow = speedup.compare_options(params, prepared, HERE, steps=None)
    assert slow.step_s == 2.0
    assert slow.speed.median == 0.5


ROWS = [
    OptionSpeed(CONFIGURED, 0.01, Ratio(1.0, 1.0, 1.0)),
    OptionSpeed("compile: default", 0.005, Ratio(2.0, 1.8, 2.2)),
    OptionSpeed("lanes: 2", 0.02, Ratio(1.3, 0.5, 1.6)),
    OptionSpeed("channels_last: true", obstacle="the inputs are not images"),
]


def test_only_an_option_that_was_faster_in_every_round_is_named() -> None:
    bf16 = OptionSpeed("precision: bf16", 0.009, Ratio(1.1, 1.05, 1.2))
    assert speedup.always_faster([*ROWS, bf16]) == "compile: default (2.00 times as fast), precision: bf16 (1.10 times as fast)"
    assert speedup.always_faster([ROWS[0], ROWS[2], ROWS[3]]) == ""


def test_a_row_of_the_table_has_time_rate_and_speed() -> None:
    text = "\n".join(speedup.table(ROWS, 64))
    assert "| compile: default                | 5.00       | 12,800     | 2.00 (1.80 to 2.20)    |" in text
    assert "not available: the inputs are not images" in text


def test_the_verb_prints_the_rows(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(project.make(tmp_path))
    assert main(["prepare"]) == 0
    monkeypatch.setattr(speedup, "options", lambda *_, **__: iter([Option("lanes: 2", {"lanes": 2}), Option("lanes: 3", {"lanes": 3})]))
    monkeypatch.setattr(speedup, "BLOCK_S", 0.01)
    assert main(["profile", "--speedup", "--steps", "2"]) == 0
    output = capsys.readouterr().out
    assert "| lanes: 2 " in output
    assert "not available: train." in output
    assert "aster" in output, "faster, or no option was faster"
