"""The search for a micro-batch size: what is tried, what is proposed, and what happens when memory runs out."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pipeline.__main__ import main
from pipeline.core.refusal import Refusal
from pipeline.inference.torch_errors import OutOfMemory
from pipeline.tools.profile import fit_batch
from pipeline.tools.profile.fit_batch import OVERFLOW, Search, Training, conclusion, smallest_of_fastest
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
        answers = fit_batch.answers(trial, reports, 4, [4, 8])
        row, waiting = next(answers)
        assert row.name == "micro_batch_size: 4"
        assert row.step_s > 0
        assert row.speed == (1, 1, 1)
        assert row.peak_bytes > 50e6
        assert 0 <= waiting < 1
        with pytest.raises(OutOfMemory):
            next(answers)


def test_one_sample_that_does_not_fit_is_out_of_memory_too(params, prepared, before_each_forward) -> None:
    def refuse(_: torch.Tensor) -> None:
        raise torch.OutOfMemoryError("too large")

    before_each_forward(refuse)
    trial = Trial.of(params, prepared, HERE)
    with pytest.raises(OutOfMemory), stepping(trial) as reports:
        next(fit_batch.answers(trial, reports, 1, [1]))


def test_layers_that_depend_on_the_micro_batch_are_named(train_params, prepared) -> None:
    convnet = {"name": "convnet", "weights": None, "width": 4, "dropout": 0.1}
    network = Trial.of(train_params({"model": convnet}), prepared, HERE).state.model.network
    norms, dropout = fit_batch.notes(network)
    assert norms.startswith("BatchNorm (0.1, 0.4, 2.1, 2.4, 4.1, 4.4) uses the mean and variance of each micro-batch")
    assert dropout.startswith("Dropout (")
    [plain] = fit_batch.notes(Trial.of(train_params({}), prepared, HERE).state.model.network)
    assert "changes its result by rounding only" in plain


class Fake:
    """Stands for the measuring process: sizes above `limit` do not fit, one sample is impossible, and larger sizes are faster."""

    limit = 16
    one = "BatchNorm needs more than one value per channel"

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.on_gpu = False

    @contextmanager
    def process(self, reference: int, sizes: Sequence[int]) -> Iterator[tuple[None, Iterator[object]]]:
        self.asked.append(list(sizes))
        yield None, self.answers(reference, sizes)

    def answers(self, reference: int, sizes: Sequence[int]) -> Iterator[object]:
        yield Training("mlp on cpu", self.on_gpu, ())
        for size in sizes:
            if size > self.limit or (size == 1 and self.one):
                yield OVERFLOW if size > self.limit else self.one
            speed = size / reference
            yield Row(fit_batch.named(size), 1 / size, Spread(speed, speed, speed), 1_000_000 * size), 0.5


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake()
    monkeypatch.setattr(fit_batch, "process", fake.process)
    monkeypatch.setattr(Search, "received", lambda _, __, connection: next(connection))
    return fake


def lines(train_params, batch_size: int, micro_batch_size: int, **more) -> list[str]:
    changes = {"batch_size": batch_size, "micro_batch_size": micro_batch_size, **more}
    return list(fit_batch.lines(train_params({f"train.{name}": value for name, value in changes.items()}).train))


def test_a_size_that_does_not_fit_is_replaced_by_the_fastest_that_does(train_params, fake: Fake) -> None:
    output = lines(train_params, 64, 64)
    assert fake.asked == [[4, 8, 16, 32, 64]]
    assert output[0].startswith("mlp on cpu: steps of 64 samples, within ")
    assert output[0].endswith(" MB of this machine's memory")
    assert "| micro_batch_size: 16            | 62.50      | 1,024      | 4.00 (4.00 to 4.00)    | 16               |" in output
    assert "| micro_batch_size: 32            |            |            | not available: out of memory |                  |" in output
    assert not any("size: 64" in line for line in output)
    assert any(line.startswith("Other processes use the CPUs: for 50% of the time") for line in output)
    assert output[-2:] == [
        "16 instead of 64, which does not fit. The batch stays as it is.",
        "python -m pipeline set train.micro_batch_size=16",
    ]


def test_a_size_with_another_obstacle_is_listed_and_the_larger_ones_are_measured(train_params, fake: Fake) -> None:
    output = lines(train_params, 16, 2)
    assert fake.asked == [[1, 2, 4, 8, 16], [2, 4, 8, 16]]
    assert any("not available: BatchNorm needs more" in line for line in output)
    assert "16 instead of 2: 8.00 times as fast. The batch stays as it is." in output


def test_smaller_sizes_are_tried_if_the_first_does_not_fit(train_params, fake: Fake) -> None:
    fake.limit = 2
    output = lines(train_params, 128, 128)
    assert fake.asked == [[8, 16, 32, 64, 128], [4], [2]]
    assert output[-1] == "python -m pipeline set train.micro_batch_size=2"


def test_the_present_size_is_compared_although_it_does_not_divide_the_batch(train_params, fake: Fake) -> None:
    assert "16 instead of 10: 1.60 times as fast. The batch stays as it is." in lines(train_params, 16, 10)


def test_a_size_that_is_the_best_stays(train_params, fake: Fake) -> None:
    assert lines(train_params, 16, 16)[-1].startswith("train.micro_batch_size: 16 stays")


def test_lanes_limit_the_size(train_params, fake: Fake) -> None:
    assert lines(train_params, 16, 16, lanes=2)[-1].startswith("train.micro_batch_size: 8 stays")


def test_less_memory_is_proposed_for_the_same_speed() -> None:
    row = {size: Row("", 1.0, Spread(1.0, 1.0, 1.0), size * 10**6) for size in (8, 32)}
    assert next(conclusion(row, 32, 32)) == (
        "8 instead of 32: 1.00 times as fast, which is within the noise, and 24 MB less memory. The batch stays as it is."
    )


def test_graphs_have_one_size(train_params, fake: Fake) -> None:
    with pytest.raises(Refusal, match=r"train\.compile: `graphs` needs"):
        lines(train_params, 16, 16, compile="graphs")


@pytest.mark.parametrize(("one", "expected"), [(Fake.one, "BatchNorm needs more than one"), ("", "one sample does not fit in memory")])
def test_nothing_that_fits_is_refused(train_params, fake: Fake, one: str, expected: str) -> None:
    fake.limit, fake.one = (1, one) if one else (0, "")
    with pytest.raises(Refusal, match=expected):
        lines(train_params, 16, 16)


def test_a_gpu_has_no_limit_of_the_machine(train_params, fake: Fake) -> None:
    fake.on_gpu = True
    assert "within the memory of the GPU" in lines(train_params, 16, 16)[0]


@contextmanager
def measured_here(reference: int, sizes: Sequence[int]) -> Iterator[tuple[None, Iterator[object]]]:
    """Measure in this process, as the measuring process does."""
    sent: list[object] = []
    fit_batch.serve(SimpleNamespace(send=sent.append), reference, sizes)
    yield None, iter(sent)


def test_the_verb_prints_what_real_steps_take_and_leaves_everything_as_it_is(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(project.make(tmp_path / "project", {"train.batch_size": 64, "train.micro_batch_size": 4}))
    assert main(["prepare"]) == 0
    before = sorted(path for path in Path().rglob("*"))
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(fit_batch, "BLOCK_S", 0.0)
        patch.setattr(fit_batch, "process", measured_here)
        patch.setattr(Search, "received", lambda _, __, connection: next(connection))
        patch.setattr(fit_batch.signal, "signal", lambda *_: None)
        patch.setattr(fit_batch, "Path", lambda _: tmp_path / "oom_score_adj")
        assert main(["profile", "--fit-batch"]) == 0
    assert (tmp_path / "oom_score_adj").read_text() == "1000"
    output = capsys.readouterr().out
    assert "mlp on cpu" in output
    assert "within" in output
    assert "python -m pipeline set train.micro_batch_size=" in output, "one pass of 64 is many times as fast as sixteen of 4"
    assert sorted(path for path in Path().rglob("*") if "__pycache__" not in path.parts) == before
    Path("data/prepared/spec.json").unlink()
    assert main(["profile", "--fit-batch"]) == 2
    assert "spec.json: is missing: run `dvc repro prepare`" in capsys.readouterr().err


def test_a_process_that_takes_too_much_or_is_killed_is_out_of_memory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with fit_batch.process(1, [1]) as (child, connection):
        assert Search([1], 0, budget_bytes=1).received(child, connection) == OVERFLOW
        child.kill()
        assert Search([1], 0, budget_bytes=10**15).received(child, connection) == OVERFLOW
    assert not child.is_alive()


@pytest.mark.slow
def test_resident_memory_limits_the_size(tmp_path: Path, monkeypatch) -> None:
    """The limit lies between what 16 and what 256 samples take."""
    convnet = {"name": "convnet", "weights": None, "width": 64, "dropout": 0.0}
    folder = project.make(tmp_path, {"model": convnet, "train.batch_size": 256, "train.micro_batch_size": 256})
    monkeypatch.chdir(folder)
    assert main(["prepare"]) == 0
    search = Search([16, 256], 0, 10**15)
    small, large = (row.peak_bytes for row in search.run())
    assert large > small + 20e6
    search = Search([16, 256], 0, (small + large) // 2)
    list(search.run())
    assert search.rows[16].speed
    assert search.rows[256].obstacle == OVERFLOW
