"""The loop: that it learns, reports, keeps the best, stops, and that nothing but the parameters decides its result."""

import math
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from pipeline.core.refusal import Refusal
from pipeline.core.spec import Spec
from pipeline.inference.measuring import Measured
from pipeline.models import mlp
from tests.laws.test_resuming import CONVNET
from tests.train.engine.building import begin, run, same, steps

OF_16 = {"train.batch_size": 16, "train.micro_batch_size": 16, "train.export_weights": "last"}
GOLDEN_LOSSES = [1.129226, 0.955638, 0.827676, 0.785125]


def test_the_first_steps_give_the_recorded_numbers(train_params, prepared) -> None:
    losses = [report.metrics["train/objective"] for report in run(begin(train_params({"model": CONVNET, **steps(4, 1)}), prepared))]
    # the last digits differ between CPUs; after a change of the meaning on purpose, put the numbers of the message here
    assert losses == pytest.approx(GOLDEN_LOSSES, rel=1e-3), f"GOLDEN_LOSSES = {losses}"


def test_observing_more_often_changes_nothing(train_params, prepared) -> None:
    changes = {"model": CONVNET, **OF_16, "train.micro_batch_size": 8}
    often, seldom = (begin(train_params({**changes, **steps(12, every)}), prepared) for every in (1, 12))
    run(often)
    run(seldom)
    assert same(often.state.tensors(), seldom.state.tensors())


def test_each_report_averages_the_steps_since_the_last_one(train_params, prepared) -> None:
    every, pairs = (run(begin(train_params({**OF_16, **steps(6, number)}), prepared)) for number in (1, 2))
    singles = [report.metrics["train/objective"] for report in every]
    expected = [(one + other) / 2 for one, other in zip(singles[::2], singles[1::2], strict=True)]
    assert [report.metrics["train/objective"] for report in pairs if report.metrics] == pytest.approx(expected, rel=1e-12)


def test_the_best_validation_is_kept_and_the_first_of_equals_wins(train_params, prepared) -> None:
    training = begin(train_params({**steps(12, 1), "train.export_weights": "best"}), prepared)
    kept, values = {}, []
    for report in training.reports():
        values.append(report.metrics["valid/accuracy"])
        kept[report.step] = {name: tensor.clone() for name, tensor in training.state.scored.network.state_dict().items()}
    best = values.index(max(values)) + 1
    assert training.progress.best_step == best
    assert training.progress.best is not None
    assert same(training.progress.best, kept[best])


def test_training_stops_after_patience_validations_without_improvement(train_params, prepared) -> None:
    training = begin(train_params({**steps(400, 5), "train.patience": 3, "train.metric": "valid/accuracy"}), prepared)
    run(training)
    assert training.state.step < 400
    assert training.progress.best_step == training.state.step - 3 * 5


def test_a_validation_that_does_not_determine_the_metric_is_not_the_best(train_params, prepared, monkeypatch) -> None:
    """Not the first either: a value of NaN, which is neither larger nor smaller than another, would remain the best."""
    values = iter([{}, {"auroc": 0.7}, {}, {"auroc": 0.5}])
    monkeypatch.setattr(Measured, "values", lambda *_: next(values))
    changes = {**steps(4, 1), "train.metrics": ["auroc"], "train.metric": "valid/auroc", "train.export_weights": "best"}
    training = begin(train_params(changes), prepared)
    run(training)
    assert (training.progress.best_value, training.progress.best_step) == (0.7, 2)


def test_a_batch_larger_than_the_data_is_noted(train_params, prepared, capsys) -> None:
    samples = len(prepared.train)
    for batch_size, changes, count in ((samples, {"train.epochs": 3}, 0), (2 * samples, {"train.epochs": 3}, 1), (2 * samples, {}, 0)):
        sizes = {"train.batch_size": batch_size, "train.micro_batch_size": 8}
        begin(train_params({**steps(4, 2), **({"train.steps": None} if changes else {}), **sizes, **changes}), prepared)
        said = capsys.readouterr().out
        assert said.count(f"is larger than the train split ({samples} samples): `train.epochs: 3` gives 2 steps") == count


@pytest.mark.parametrize("lanes", [1, 2])
def test_weights_without_a_gradient_are_named_once_unless_they_are_frozen(train_params, prepared, monkeypatch, capsys, lanes: int) -> None:
    build = mlp.Settings.build

    def with_unused(settings: mlp.Settings, spec: Spec) -> nn.Module:
        network = build(settings, spec)
        network.get_submodule("0").add_module("unused", nn.Linear(400, 3))
        return network

    monkeypatch.setattr(mlp.Settings, "build", with_unused)
    note = "train: 1,203 weights keep their initial values, because the loss does not depend on them: 0.unused.weight, 0.unused.bias\n"
    for freeze, count in (([], 1), (["0.*"], 0)):
        run(begin(train_params({**steps(3, 3), **OF_16, "train.lanes": lanes, "train.freeze": freeze}), prepared))
        said = capsys.readouterr().out
        assert said.count(note) == said.count("keep their initial values") == count


def test_without_a_validation_split_the_last_weights_are_exported(train_params, prepared) -> None:
    del prepared.splits["valid"]
    training = begin(train_params({"train.export_weights": "last", "train.epochs": 1}), prepared)
    assert all("valid/loss" not in report.metrics for report in run(training))
    assert training.progress.best is None
    with pytest.raises(Refusal, match=r"train\.export_weights: best needs a validation split: set source\.valid above 0"):
        begin(train_params({"train.export_weights": "best"}), prepared)
    with pytest.raises(Refusal, match=r"train\.patience needs a validation split"):
        begin(train_params({"train.export_weights": "last", "train.patience": 3}), prepared)


def test_validation_scores_the_averaged_weights(train_params, prepared) -> None:
    changes = {**steps(5), "optimizer.learning_rate": 0.5, "train.export_weights": "last"}
    averaged, raw = (begin(train_params({**changes, "train.ema_decay": decay}), prepared) for decay in (0.999, 0.0))
    one, other = run(averaged)[-1].metrics, run(raw)[-1].metrics
    assert one["train/objective"] == other["train/objective"]
    assert one["valid/loss"] != other["valid/loss"]


def test_a_validation_that_is_no_number_ends_with_the_remedy(train_params, prepared, monkeypatch) -> None:
    monkeypatch.setattr("pipeline.train.engine.metrics.score", lambda *_, **__: {"loss": math.nan, "accuracy": 0.1})
    with pytest.raises(Refusal, match=r"^optimizer\.learning_rate: valid/loss became nan .*step \d+: lower optimizer\.learning_rate"):
        run(begin(train_params({}), prepared))


def test_fp16_that_overflows_at_any_scale_ends_with_the_remedy(train_params, prepared, monkeypatch) -> None:
    training = begin(train_params({"train.precision": "fp16", "train.report_every_steps": 1, "train.validate_every_steps": 50}), prepared)
    last = training.state.model.network[-1]
    compute = last.forward
    monkeypatch.setattr(last, "forward", lambda inputs: compute(inputs) * math.inf)
    # the scale begins at 65,536 and is halved by each overflow
    with pytest.raises(
        Refusal,
        match=r"^train\.precision: fp16 gradients overflowed up to step 17, and the loss scale fell below 1: lower optimizer\.learning_rate",
    ):
        run(training)


def test_the_last_step_is_reported_and_validated(train_params, prepared) -> None:
    reports = [report for report in run(begin(train_params(steps(7, 5)), prepared)) if report.metrics]
    assert [report.step for report in reports] == [5, 7]
    assert all(math.isfinite(report.metrics["valid/loss"]) for report in reports)


def test_fp16_and_bf16_train_on_a_cpu_with_a_warning(train_params, prepared, capsys) -> None:
    for used in ("fp16", "bf16"):
        changes = {"train.precision": used, "train.channels_last": True, "train.ema_decay": 0.0, "loss.label_smoothing": 0.0}
        training = begin(train_params({**steps(20, 10), **changes}), prepared)
        first, *_, last = [report.metrics["train/objective"] for report in run(training) if report.metrics]
        output = capsys.readouterr().out
        assert f"warning: train.precision: {used} is slow on a CPU" in output
        assert ("gradients of depthwise convolutions" in output) == (used == "bf16")
        assert last < first
        assert training.state.precision == used
    begin(train_params({**steps(20, 10), "train.precision": "fp32"}), prepared)
    assert "slow" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_a_compiled_model_learns_the_same_and_later_runs_find_it_compiled(train_params, prepared, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.compiler.reset()  # a test before this one may have compiled the same network in this process, which then reaches no disk
    changes = {**steps(6), **OF_16}
    plain, compiled = (run(begin(train_params({**changes, "train.compile": wish}), prepared))[-1].metrics for wish in ("off", "default"))
    assert compiled == pytest.approx(plain, rel=1e-4)
    # as a later run does: nothing is in memory, and what was compiled is found on the disk
    torch.compiler.reset()
    counters.clear()
    again = run(begin(train_params({**changes, "train.compile": "default"}), prepared))[-1].metrics
    assert again == compiled
    hits, misses = (counters["aot_autograd"][f"autograd_cache_{found}"] for found in ("hit", "miss"))
    assert hits
    assert not misses


def test_the_norm_of_the_gradient_is_measured_for_the_steps_that_are_reported(train_params, prepared) -> None:
    plan = begin(train_params({**steps(20, 5), "train.clip_norm": None}), prepared).plan
    assert [step for step in range(20) if plan.step_settings(step).measures_norm] == [4, 9, 14, 19]
