"""The search for a micro-batch size: what is tried, what is proposed, and what happens when memory runs out."""

from pathlib import Path

import pytest
import torch

from pipeline.__main__ import main
from pipeline.core.refusal import Refusal
from pipeline.tools.profile import fit_batch, micro_batches
from pipeline.tools.profile.fit_batch import Result, SizeSearch, largest_that_fits, smallest_of_fastest
from pipeline.tools.profile.micro_batches import Measured, MeasuringProcess, Overflow, TrainingProperties
from pipeline.tools.profile.trial import Trial, stepping
from tests import project
from tests.train.engine.building import HERE


@pytest.mark.parametrize(("limit", "tried"), [(64, [4, 8, 16, 32, 64]), (20, [4, 8, 16, 32]), (2, [4, 1, 2]), (0, [4, 1])])
def test_sizes_double_until_one_does_not_fit(limit: int, tried: list[int]) -> None:
    sizes, asked = fit_batch.divisors(64), []
    found = largest_that_fits(sizes, lambda size: asked.append(size) or size <= limit, start=2)
    assert asked == tried
    assert found == max((size for size in sizes if size <= limit), default=None)


@pytest.mark.parametrize("number", [1, 7, 60, 97, 720])
@pytest.mark.parametrize("start", [0, 1])
def test_the_search_finds_the_largest_divisor_that_fits(number: int, start: int) -> None:
    sizes = fit_batch.divisors(number)
    for limit in range(number + 1):
        asked: list[int] = []
        found = largest_that_fits(
            sizes, lambda size, asked=asked, limit=limit: asked.append(size) or size <= limit, start=min(start, len(sizes) - 1)
        )
        assert found == max((size for size in sizes if size <= limit), default=None)
        assert len(asked) == len(set(asked)), "no size is tried twice"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({8: [2.0] * 7, 16: [1.0] * 7, 32: [1.0] * 7}, 16),
        ({8: [1.02] * 7, 16: [1.0] * 7}, 8),
        ({8: [1.2] * 7, 16: [1.0] * 7}, 16),
        ({8: [0.9, 0.9, 1.2, 1.2, 1.2, 1.2, 1.2], 16: [1.0] * 7}, 16),
        ({4: [1.0, 2.0, 3.0], 8: [1.1, 1.1, 2.9], 64: [0.9, 1.5, 2.0]}, 64),
    ],
)
def test_the_smallest_of_the_equally_fast_sizes_is_proposed(seconds: dict[int, list[float]], expected: int) -> None:
    assert smallest_of_fastest(seconds, present=64) == expected


def test_a_step_that_runs_out_of_memory_ends_the_trial_of_its_size(params, prepared, before_each_forward) -> None:
    """The training itself would go on with smaller micro-batches."""

    def refuse_large(inputs: torch.Tensor) -> None:
        if len(inputs) > 4:
            raise torch.OutOfMemoryError("too large")

    before_each_forward(refuse_large)
    trial = Trial.of(params, prepared, HERE)
    with stepping(trial) as reports:
        found = micro_batches.measure_size(trial, reports, 4)
        assert found.size == 4
        assert found.step_s > 0
        assert found.peak_bytes > 50e6
        with pytest.raises(Refusal, match=micro_batches.OUT_OF_MEMORY):
            micro_batches.measure_size(trial, reports, 8)


def test_one_sample_that_does_not_fit_is_out_of_memory_too(params, prepared, before_each_forward) -> None:
    def refuse(_: torch.Tensor) -> None:
        raise torch.OutOfMemoryError("too large")

    before_each_forward(refuse)
    trial = Trial.of(params, prepared, HERE)
    with pytest.raises(Refusal, match=micro_batches.OUT_OF_MEMORY), stepping(trial) as reports:
        micro_batches.measure_size(trial, reports, 1)


def test_blocks_of_several_sizes_run_in_turn(params, prepared) -> None:
    trial = Trial.of(params, prepared, HERE)
    with stepping(trial) as reports:
        seconds, waiting = micro_batches.timed(trial, reports, {4: 1, 16: 2})
    assert 0 <= waiting < 1
    assert {size: len(each) for size, each in seconds.items()} == {4: 7, 16: 7}
    assert trial.state.step == 7 * 3


def test_layers_that_depend_on_the_micro_batch_are_named(train_params, prepared) -> None:
    convnet = {"name": "convnet", "weights": None, "width": 4, "dropout": 0.1}
    properties = micro_batches.properties_of(Trial.of(train_params({"model": convnet}), prepared, HERE))
    assert properties.norms == ("0.1", "0.4", "2.1", "2.4", "4.1", "4.4")
    assert len(properties.dropouts) == 1
    text = "\n".join(fit_batch.notes(properties))
    assert "BatchNorm (0.1, 0.4, 2.1, 2.4, 4.1, 4.4) uses the mean and variance of each micro-batch" in text
    assert "Dropout (" in text
    plain = micro_batches.properties_of(Trial.of(train_params({}), prepared, HERE))
    assert (plain.norms, plain.dropouts) == ((), ())
    assert "changes its result by rounding only" in "\n".join(fit_batch.notes(plain))
    assert fit_batch.listed([str(number) for number in range(9)]) == "0, 1, 2, 3, 4, 5 and 3 more"


class Fake:
    """A process without a training: sizes above 16 do not fit, and one sample is impossible."""

    started = 0

    def __init__(self, budget_bytes: int | None) -> None:
        type(self).started += 1
        self.largest = 0

    def __enter__(self) -> "Fake":
        return self

    def __exit__(self, *_: object) -> None:
        self.largest = -1

    def properties(self) -> TrainingProperties:
        return TrainingProperties("mlp on cpu", "cpu", (), ())

    def measured(self, size: int) -> Measured:
        assert size >= self.largest >= 0, "memory of a larger size would be counted"
        self.largest = size
        if size > 16:
            raise Overflow
        if size == 1:
            raise Refusal("BatchNorm needs more than one value per channel")
        return Measured(size, 1.0 / size, 1000 * size)

    def blocks(self, counts: dict[int, int]) -> tuple[dict[int, list[float]], float]:
        return {size: [1.0 / size] * 7 for size in counts}, 0.5


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    monkeypatch.setattr(fit_batch, "MeasuringProcess", Fake)
    monkeypatch.setattr(Fake, "started", 0)
    return Fake


def settings(train_params, batch_size: int, micro_batch_size: int, **more):
    changes = {"batch_size": batch_size, "micro_batch_size": micro_batch_size, **more}
    return train_params({f"train.{name}": value for name, value in changes.items()}).train


def test_a_size_that_does_not_fit_is_replaced_by_the_fastest_that_does(train_params, fake) -> None:
    result = fit_batch.measure_sizes(settings(train_params, 64, 64))
    lines = list(result.lines())
    assert result.proposed == 16
    assert result.overflows == [32]
    assert [each.size for each in result.measured] == [4, 8, 16]
    assert lines[-2:] == ["16 instead of 64, which does not fit. The batch stays 64.", "python -m pipeline set train.micro_batch_size=16"]
    assert any("out of memory" in line for line in lines)
    assert any(line.startswith("Other processes use the CPUs: for 50% of the time") for line in lines)
    assert fake.started == 3, "one process for the search, one after the overflow, one for the comparison"


def test_a_size_with_another_obstacle_is_listed_and_not_proposed(train_params, fake) -> None:
    result = fit_batch.measure_sizes(settings(train_params, 16, 2))
    assert [each.size for each in result.measured if each.obstacle] == [1]
    assert "not possible: BatchNorm needs more" in "\n".join(result.lines())
    assert result.proposed == 16
    assert "16 instead of 2: 8.00 times as fast. The batch stays 16." in list(result.lines())


def test_the_present_size_is_compared_although_it_does_not_divide_the_batch(train_params, fake) -> None:
    result = fit_batch.measure_sizes(settings(train_params, 16, 10))
    assert 10 in result.seconds
    assert result.proposed == 16


def test_a_size_that_is_the_best_stays(train_params, fake) -> None:
    assert list(fit_batch.measure_sizes(settings(train_params, 16, 16)).lines())[-1].startswith("train.micro_batch_size: 16 stays")


def test_lanes_limit_the_size(train_params, fake) -> None:
    result = fit_batch.measure_sizes(settings(train_params, 16, 16, lanes=2))
    assert max(result.seconds) == 8
    assert result.proposed == 8


def test_graphs_have_one_size(train_params, fake) -> None:
    with pytest.raises(Refusal, match=r"train\.compile: `graphs` needs"):
        fit_batch.measure_sizes(settings(train_params, 16, 16, compile="graphs"))


def test_nothing_that_fits_is_refused(train_params, fake, monkeypatch) -> None:
    def overflow(self: Fake, size: int) -> Measured:
        raise Overflow

    monkeypatch.setattr(fake, "measured", overflow)
    with pytest.raises(Refusal, match="one sample does not fit in memory"):
        fit_batch.measure_sizes(settings(train_params, 16, 16))


@pytest.mark.parametrize("limit", [8, 0])
def test_a_size_that_does_not_fit_beside_the_others_is_left_out(train_params, fake, monkeypatch, limit: int) -> None:
    def blocks(self: Fake, counts: dict[int, int], measured=fake.blocks) -> tuple[dict[int, list[float]], float]:
        if max(counts) > limit:
            raise Overflow
        return measured(self, counts)

    monkeypatch.setattr(fake, "blocks", blocks)
    if not limit:
        with pytest.raises(Refusal, match="one sample does not fit in memory"):
            fit_batch.measure_sizes(settings(train_params, 64, 64))
        return
    result = fit_batch.measure_sizes(settings(train_params, 64, 64))
    assert sorted(result.overflows) == [16, 32]
    assert [each.size for each in result.measured] == [4, 8]
    assert list(result.lines())[-1] == "python -m pipeline set train.micro_batch_size=8"


def test_a_gpu_has_no_limit_of_the_machine(train_params, fake, monkeypatch) -> None:
    monkeypatch.setattr(fake, "properties", lambda _: TrainingProperties("mlp on cuda", "cuda", (), ()))
    result = fit_batch.measure_sizes(settings(train_params, 16, 16))
    assert result.budget_bytes is None
    assert "within the memory of the GPU" in next(result.lines())


def test_the_verb_prints_what_real_steps_take_and_leaves_everything_as_it_is(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(project.make(tmp_path, {"train.batch_size": 64, "train.micro_batch_size": 4}))
    assert main(["prepare"]) == 0
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    monkeypatch.setattr(fit_batch, "BLOCK_S", 0.02)
    capsys.readouterr()
    assert main(["fit-batch"]) == 0
    output = capsys.readouterr().out
    assert "mlp on cpu" in output
    assert "within" in output
    assert "python -m pipeline set train.micro_batch_size=" in output, "one pass of 64 is many times as fast as sixteen of 4"
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if "__pycache__" not in path.parts) == before
    (tmp_path / "data/prepared/spec.json").unlink()
    assert main(["fit-batch"]) == 2
    assert "spec.json: is missing: run `dvc repro prepare`" in capsys.readouterr().err


def test_a_process_that_takes_too_much_or_is_killed_is_an_overflow(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with MeasuringProcess(budget_bytes=1) as measuring, pytest.raises(Overflow):
        measuring.measured(1)
    with MeasuringProcess(budget_bytes=None) as measuring:
        measuring.process.kill()
        with pytest.raises(Overflow):
            measuring.properties()
    assert not measuring.process.is_alive()


@pytest.mark.slow
def test_resident_memory_limits_the_size(tmp_path: Path, monkeypatch) -> None:
    """The limit lies between what 16 and what 1,024 samples take."""
    convnet = {"name": "convnet", "weights": None, "width": 64, "dropout": 0.0}
    folder = project.make(tmp_path, {"model": convnet, "train.batch_size": 1024, "train.micro_batch_size": 1024})
    monkeypatch.chdir(folder)
    assert main(["prepare"]) == 0
    with MeasuringProcess(None) as measuring:
        small, large = measuring.measured(16).peak_bytes, measuring.measured(1024).peak_bytes
    assert large > small + 50e6
    monkeypatch.setattr(micro_batches, "available_bytes", lambda: int((small + large) / 2 / fit_batch.BUDGET_SHARE))
    from pipeline.core.params import load
    from pipeline.core.yaml_document import Document
    from pipeline.train.params import TrainParams

    result = fit_batch.measure_sizes(load(Document.read(Path("params.yaml")), TrainParams).train)
    assert result.overflows
    assert min(result.overflows) <= 1024
    assert 16 <= max(result.seconds) < 1024
    assert isinstance(result, Result)


def test_a_search_uses_a_new_process_for_a_smaller_size(fake) -> None:
    search = SizeSearch(None)
    for size, processes in ((4, 1), (8, 1), (4, 2), (32, 3), (16, 3)):
        search.fits(size)
        assert fake.started == processes
