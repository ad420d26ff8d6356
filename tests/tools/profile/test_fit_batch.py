"""The search for a micro-batch size: what is tried, what is proposed, and what happens when memory runs out."""

from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import pytest
import torch

from pipeline.__main__ import main
from pipeline.core.refusal import Refusal
from pipeline.inference.machine import Machine
from pipeline.inference.torch_errors import OutOfMemory
from pipeline.tools.profile import fit_batch
from pipeline.tools.profile import trial as trials
from pipeline.tools.profile.fit_batch import conclusion, smallest_of_fastest
from pipeline.tools.profile.speedup import Row
from pipeline.tools.profile.trial import Spread, Trial, stepping
from tests import project
from tests.train.engine.building import HERE


def test_the_smallest_of_the_equally_fast_sizes_is_proposed() -> None:
    for speeds, expected in (({8: 0.98, 16: 1.0}, 8), ({8: 0.8, 16: 1.0}, 16), ({8: 0.8, 24: 1.0}, 24)):
        assert smallest_of_fastest(speeds, lane_size=64, present=24) == expected


def test_a_step_that_runs_out_of_memory_ends_the_trial_of_its_size(params, prepared, before_each_forward, monkeypatch) -> None:
    """The training itself would go on with smaller micro-batches."""
    monkeypatch.setattr(fit_batch, "BLOCK_S", 0.0)

    def refuse_large(inputs: torch.Tensor) -> None:
        if len(inputs) > 4:
            raise torch.OutOfMemoryError("too large")

    before_each_forward(refuse_large)
    trial = Trial.of(params, prepared, HERE)
    with stepping(trial) as reports:
        row = fit_batch.measure(trial, reports, 4, reference=4)
        assert row.name == "micro_batch_size: 4"
        assert row.step_s > 0
        assert row.speed == (1, 1, 1)
        assert row.peak_bytes > 50e6
        with pytest.raises(OutOfMemory):
            fit_batch.measure(trial, reports, 8, reference=4)


def test_one_sample_that_does_not_fit_is_out_of_memory_too(params, prepared, before_each_forward) -> None:
    def refuse(_: torch.Tensor) -> None:
        raise torch.OutOfMemoryError("too large")

    before_each_forward(refuse)
    trial = Trial.of(params, prepared, HERE)
    with pytest.raises(OutOfMemory), stepping(trial) as reports:
        fit_batch.measure(trial, reports, 1, reference=1)


class Fake:
    """Stands for real steps: sizes above `limit` do not fit, one sample is impossible, and larger sizes are faster."""

    limit = 16
    one = "BatchNorm needs more than one value per channel"

    def __init__(self) -> None:
        self.asked: list[int] = []

    def measure(self, trial: Trial, reports: object, size: int, *, reference: int) -> Row:
        self.asked.append(size)
        if size > self.limit:
            raise OutOfMemory("too large")
        if size == 1 and self.one:
            raise Refusal(self.one)
        speed = size / reference
        return Row(fit_batch.named(size), 1 / size, Spread(speed, speed, speed), 1_000_000 * size)


@pytest.fixture
def fake(train_params, prepared, monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake, trial = Fake(), Trial.of(train_params({}), prepared, HERE)
    monkeypatch.setattr(fit_batch, "begun", lambda *_: trial)
    monkeypatch.setattr(fit_batch, "measure", fake.measure)
    monkeypatch.setattr(trials, "cpu_wait_s", perf_counter)
    return fake


@pytest.fixture
def lines(train_params, prepared) -> Callable[..., list[str]]:
    """`lines(64, 16)`: return what the user sees for a batch and a micro-batch of these sizes."""

    def found(batch_size: int, micro_batch_size: int, machine: Machine = HERE, **more: object) -> list[str]:
        changes = {"batch_size": batch_size, "micro_batch_size": micro_batch_size, **more}
        params = train_params({f"train.{name}": value for name, value in changes.items()})
        return list(fit_batch.lines(params, prepared, machine))

    return found


def test_a_size_that_does_not_fit_is_replaced_by_the_fastest_that_does(lines, fake: Fake) -> None:
    output = lines(64, 64)
    assert fake.asked == [4, 8, 16, 32]
    assert output[0].startswith("mlp on cpu")
    assert output[0].endswith("in fp32: steps of 64 samples")
    assert "| micro_batch_size: 16            | 62.50      | 1,024      | 4.00 (4.00 to 4.00)    | 16               |" in output
    assert "| micro_batch_size: 32            |            |            | not available: out of memory |                  |" in output
    assert not any("size: 64" in line for line in output)
    assert any(line.startswith("Other processes use the CPUs") for line in output)
    assert output[-2:] == [
        "16 instead of 64, which does not fit. The batch stays as it is.",
        "python -m pipeline set train.micro_batch_size=16",
    ]


def test_a_size_with_another_obstacle_is_listed_and_the_larger_ones_are_measured(lines, fake: Fake) -> None:
    output = lines(16, 2)
    assert fake.asked == [1, 2, 4, 8, 16]
    assert any("not available: BatchNorm needs more" in line for line in output)
    assert "16 instead of 2: 8.00 times as fast. The batch stays as it is." in output


def test_smaller_sizes_are_tried_if_the_first_does_not_fit(lines, fake: Fake) -> None:
    fake.limit = 2
    output = lines(128, 128)
    assert fake.asked == [8, 4, 2]
    assert output[-1] == "python -m pipeline set train.micro_batch_size=2"


def test_the_present_size_is_compared_although_it_does_not_divide_the_batch(lines, fake: Fake) -> None:
    assert "16 instead of 10: 1.60 times as fast. The batch stays as it is." in lines(16, 10)


def test_a_size_that_is_the_best_stays(lines, fake: Fake) -> None:
    assert lines(16, 16)[-1].startswith("train.micro_batch_size: 16 stays")


def test_lanes_limit_the_size(lines, fake: Fake) -> None:
    assert lines(16, 16, lanes=2)[-1].startswith("train.micro_batch_size: 8 stays")


def test_less_memory_is_proposed_for_the_same_speed() -> None:
    row = {size: Row("", 1.0, Spread(1.0, 1.0, 1.0), size * 10**6) for size in (8, 32)}
    assert next(conclusion(row, 32, 32)) == (
        "8 instead of 32: 1.00 times as fast, which is within the noise, and 24 MB less memory. The batch stays as it is."
    )


def test_graphs_have_one_size(lines, fake: Fake) -> None:
    with pytest.raises(Refusal, match=r"train\.compile: `graphs` needs"):
        lines(16, 16, compile="graphs")


@pytest.mark.parametrize(("one", "expected"), [(Fake.one, "BatchNorm needs more than one"), ("", "one sample does not fit in memory")])
def test_nothing_that_fits_is_refused(lines, fake: Fake, one: str, expected: str) -> None:
    fake.limit, fake.one = (1, one) if one else (0, "")
    with pytest.raises(Refusal, match=expected):
        lines(16, 16)


def test_the_verb_prints_what_real_steps_take_and_leaves_everything_as_it_is(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(project.make(tmp_path / "project", {"train.batch_size": 64, "train.micro_batch_size": 4}))
    assert main(["prepare"]) == 0
    before = sorted(path for path in Path().rglob("*"))
    capsys.readouterr()
    monkeypatch.setattr(fit_batch, "BLOCK_S", 0.0)
    assert main(["profile", "--fit-batch"]) == 0
    output = capsys.readouterr().out
    assert "mlp on cpu" in output
    assert "python -m pipeline set train.micro_batch_size=" in output, "one pass of 64 is many times as fast as sixteen of 4"
    assert sorted(path for path in Path().rglob("*") if "__pycache__" not in path.parts) == before
    Path("data/prepared/spec.json").unlink()
    assert main(["profile", "--fit-batch"]) == 2
    assert "spec.json: is missing: run `dvc repro prepare`" in capsys.readouterr().err
