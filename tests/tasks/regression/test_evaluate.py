"""The evaluator of a regression: fed in pieces of any size, it gives the scores of the whole split, and its intervals. Its losses and metrics."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error
from torch import Tensor
from torch.nn import functional

from pipeline.core.prepared import Prepared, Split
from pipeline.core.refusal import Refusal
from pipeline.core.registry import LOSSES
from pipeline.core.spec import Spec
from pipeline.evaluate.reports import recorded
from pipeline.inference import scores
from pipeline.inference.batch import Batch
from pipeline.inference.networks import Model, postprocessing, predict
from pipeline.tasks.regression.evaluate import Evaluator, Settings
from pipeline.tasks.regression.predict import Predictor, rounded
from pipeline.tasks.regression.targets import Floats, NumberTargets
from pipeline.tasks.regression.train import Objective
from tests.specs import image_spec
from tests.train.engine.building import begin, run, steps, weights

IMAGES = image_spec(shape=(2, 2, 1), classes=("a", "b"), mean=(0.4,), std=(0.3,)).inputs
GENERATOR = np.random.default_rng(3)
ACTUAL = GENERATOR.normal((2000.0, -0.5), (15.0, 0.01), (60, 2))
PREDICTED = torch.from_numpy(ACTUAL + GENERATOR.normal(0, (3.0, 0.004), (60, 2)))
TARGETS = NumberTargets(columns=("year", "share")).fitted(ACTUAL)
SETTINGS = Settings(name="regression", batch_size=8, test_time_augmentation="none", metrics=(), confidence_level=0.9)
HISTORY = [{"step": 1, "learning_rate": 0.1, "train/objective": 1.0, "valid/loss": 1.0, "valid/r2": 0.1}]


def fed(size: int, predicted: torch.Tensor = PREDICTED, actual: Floats = ACTUAL, targets: NumberTargets = TARGETS) -> Evaluator:
    evaluator = Evaluator(Spec(inputs=IMAGES, targets=targets), SETTINGS)
    for start in range(0, len(predicted), size):
        evaluator.add(
            torch.from_numpy(targets.standardized(predicted[start : start + size].numpy())), torch.from_numpy(actual[start : start + size])
        )
    return evaluator


def test_the_scores_are_those_of_scikit_learn_for_pieces_of_any_size() -> None:
    actual, predicted = ACTUAL[:, :1], PREDICTED[:, :1]
    targets = NumberTargets(columns=("year",)).fitted(actual)
    scores = fed(7, predicted, actual, targets).scores()
    assert fed(60, predicted, actual, targets).scores() == scores
    for name, score in (("rmse", root_mean_squared_error), ("mae", mean_absolute_error), ("r2", r2_score)):
        assert scores[name] == pytest.approx(score(actual, predicted), rel=1e-9)
        low, high = scores[f"{name}_interval"].values()
        assert low < scores[name] < high
    guess = targets.baseline_scores(actual, actual)["mean_guess_rmse"]
    assert guess == pytest.approx(root_mean_squared_error(actual, np.broadcast_to(actual.mean(), actual.shape)), rel=1e-9)


def test_errors_of_several_columns_are_not_averaged_over_their_units() -> None:
    scores = fed(7).scores()
    assert scores["r2"] == pytest.approx(r2_score(ACTUAL, PREDICTED), rel=1e-9)
    assert scores["per_column"]["year"]["rmse"] == pytest.approx(root_mean_squared_error(ACTUAL[:, 0], PREDICTED[:, 0]), rel=1e-9)
    assert {"rmse", "mae"}.isdisjoint(scores)
    assert TARGETS.baseline_scores(ACTUAL, ACTUAL) == {}
    fitted = ACTUAL + GENERATOR.normal(0, (5.0, 0.008), ACTUAL.shape)
    linear = TARGETS.linear_scores(lambda _: fitted, ACTUAL, ACTUAL)
    assert linear == {"linear_r2": pytest.approx(r2_score(ACTUAL, fitted), rel=1e-9)}
    assert re.fullmatch(r"test r2 .*; a linear model: 0\.\d{4}", recorded.result_line(scores | linear))


@pytest.mark.parametrize(("unit", "offset"), [(1e-47, 0.0), (1e39, 0.0), (600.0, 1.7e9)])
def test_the_last_layer_of_a_model_gives_the_numbers_that_are_scored(unit: float, offset: float) -> None:
    """Float32 has no numbers of these scales, or steps of 128."""
    actual = GENERATOR.normal(0, 1, (20, 1)) * unit + offset
    targets = NumberTargets(columns=("y",)).fitted(actual)
    outputs = torch.from_numpy(targets.standardized(actual + unit / 50)).float()
    model = Model(torch.nn.Identity(), torch.nn.Identity())
    model.postprocessing = postprocessing(targets)
    batches = [(Batch(outputs), len(outputs))]
    ((predicted, _),) = predict(model, batches, precision="fp32", device=torch.device("cpu"))
    evaluator = Evaluator(Spec(inputs=IMAGES, targets=targets), SETTINGS)
    evaluator.add(outputs, torch.from_numpy(actual))
    assert evaluator.numbers[0].tolist() == predicted.tolist()
    assert predicted.numpy() - actual == pytest.approx(unit / 50, rel=1e-3)
    scores = evaluator.scores()
    assert scores["loss"] == evaluator.mean_loss() == pytest.approx((unit / 50 / targets.std[0]) ** 2, rel=1e-3)
    assert scores["rmse"] == pytest.approx(unit / 50, rel=1e-3)
    assert "0.0000" not in recorded.result_line(scores)


@pytest.mark.parametrize(("unit", "refuse"), [(1e160, NumberTargets.refuse_invalid), (1e-170, NumberTargets.refuse_unlearnable)])
def test_numbers_whose_squares_do_not_fit_into_float64_are_refused(unit: float, refuse: Callable[..., None]) -> None:
    with pytest.raises(Refusal, match=r"in the column y.*: write it in another unit$"):
        refuse(NumberTargets(columns=("y",)), GENERATOR.normal(0, 1, (20, 1)) * unit, "a.csv: train")


def test_targets_that_differ_by_rounding_are_equal() -> None:
    with pytest.raises(Refusal, match="all train samples have the same number in the column y, apart from rounding"):
        NumberTargets(columns=("y",)).refuse_unlearnable(np.array([[0.3], [0.1 + 0.2]]), "a.csv: train")


def test_each_sample_has_its_numbers_in_their_units_and_its_squared_error(tmp_path: Path) -> None:
    evaluator = fed(60)
    scores = evaluator.sample_scores()
    assert [*scores.answers] == ["actual year", "predicted year", "actual share", "predicted share"]
    assert scores.answers["predicted share"] == pytest.approx(PREDICTED[:, 1].numpy(), rel=1e-12)
    assert scores.loss == pytest.approx((((PREDICTED.numpy() - ACTUAL) / ACTUAL.std(axis=0)) ** 2).sum(axis=1))
    assert scores.correct is None
    other = TARGETS.fitted(ACTUAL[:20])
    assert other != TARGETS
    assert other.has_targets_of(TARGETS)
    assert fed(60, targets=other).sample_scores().loss == pytest.approx(scores.loss)
    evaluator.write(tmp_path, inputs=np.zeros((60, 2, 2, 1)), history=HISTORY, model=torch.nn.Identity())
    assert {"predicted.png", "history.png"} == {path.name for path in tmp_path.iterdir()}
    assert recorded.predictions_table(scores, None).column_names == [*scores.answers, "loss", "num_targets"]


def test_an_output_that_is_not_finite_is_refused() -> None:
    broken = PREDICTED.clone()
    broken[3, 1] = torch.nan
    with pytest.raises(Refusal, match=r"^the model's outputs are not finite for 1 of 60 samples .*: its training diverged"):
        fed(60, broken).scores()


def test_a_column_called_input_leaves_the_name_of_the_sample() -> None:
    inputs = image_spec(shape=(2, 2, 1), classes=("a", "b"), mean=(0.4,), std=(0.3,)).inputs
    predictor = Predictor(Spec(inputs=inputs, targets=NumberTargets(columns=("input",), mean=(0.0,), std=(1.0,))), top_k=1)
    (prediction,) = predictor.predictions(["a.png"], np.array([[2.5]], np.float32))
    assert prediction.record() == {"input": "a.png", "predicted input": 2.5}
    assert prediction.cells() == {"input": "a.png", "predicted input": "2.5"}


@pytest.mark.parametrize(
    ("number", "std", "printed"),
    [
        (1699999750.6744442, 669.0, "1699999750.7"),
        (2.123456789, 1.0, "2.123457"),
        (0.0, 1.0, "0"),
        (-8.29245168e-48, 2e-47, "-8.292452e-48"),
    ],
)
def test_the_terminal_shows_four_digits_of_the_spread_of_the_targets(number: float, std: float, printed: str) -> None:
    assert rounded(number, std) == printed


OF_TRAIN = np.random.default_rng(1)
NUMBERS = OF_TRAIN.normal((2000.0, -0.5), (15.0, 0.01), (103, 2))
OUTPUTS = torch.from_numpy(OF_TRAIN.normal(size=(103, 2))).float()
LARGER_IMAGES = image_spec(shape=(8, 8, 1), classes=("a", "b"), mean=(0.4,), std=(0.3,)).inputs


def spec_of(columns: int) -> Spec:
    return Spec(inputs=LARGER_IMAGES, targets=NumberTargets(columns=("year", "share")[:columns]).fitted(NUMBERS[:, :columns]))


def objective(columns: int, loss: str = "mse") -> Objective:
    return Objective(spec_of(columns), LOSSES.settings(loss)(name=loss))


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("size", [1, 7, 103])
def test_metrics_are_those_of_scikit_learn_in_the_units_of_the_targets(columns: int, size: int) -> None:
    measured, outputs, targets = objective(columns), OUTPUTS[:, :columns], torch.from_numpy(NUMBERS[:, :columns])
    parts = [measured.sums(*part) for part in zip(outputs.split(size), targets.split(size), strict=True)]
    sums = {name: sum(part[name].item() for part in parts) for name in parts[0]}
    scale, middle = (NUMBERS[:, :columns].std(axis=0), NUMBERS[:, :columns].mean(axis=0))
    predicted = outputs.double().numpy() * scale + middle
    expected = {
        "rmse": root_mean_squared_error(targets, predicted),
        "mae": mean_absolute_error(targets, predicted),
        "r2": r2_score(targets, predicted),
    }
    # the targets are rounded to float32 once they are standardised
    assert measured.averages(sums, 103 * columns) == pytest.approx(expected, rel=1e-6)
    loss = measured.loss(outputs.double(), targets).item() / (103 * columns)
    assert loss == pytest.approx((((predicted - NUMBERS[:, :columns]) / scale) ** 2).mean(), rel=1e-9)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("mse", {}, functional.mse_loss),
        ("mae", {}, functional.l1_loss),
        ("huber", {"delta": 0.7}, lambda outputs, targets, reduction: functional.huber_loss(outputs, targets, reduction, 0.7)),
        ("quantile", {"quantile": 0.5}, lambda outputs, targets, reduction: functional.l1_loss(outputs, targets, reduction=reduction) / 2),
    ],
)
def test_the_losses_are_those_of_torch(name: str, settings: dict[str, float], expected: object) -> None:
    found = LOSSES.settings(name)(name=name, **settings)
    targets = OUTPUTS.flip(0)
    assert found.summed(OUTPUTS, targets, None).item() == pytest.approx(expected(OUTPUTS, targets, reduction="sum").item(), rel=1e-6)  # type: ignore[operator]
    assert found.of_guessing(2) == pytest.approx(found.summed(torch.zeros(1, 1), torch.ones(1, 1), None).item(), rel=1e-6)


def test_equal_targets_have_an_r2_of_0_however_they_are_rounded() -> None:
    sums = scores.NumberSums(squared_errors=10.0, absolute_errors=10.0, targets=1.0, squared_targets=np.nextafter(0.1, 1))
    assert scores.of_column(sums, 10, 1.0)["r2"] == 0


def test_outputs_of_another_shape_are_refused_and_not_broadcast() -> None:
    with pytest.raises(Refusal, match=r"model.name: this model returns outputs of shape .*for targets of shape \(103, 1\): correct it"):
        objective(1).training_loss(OUTPUTS[:, :1, None], torch.from_numpy(NUMBERS[:, :1]))


def test_the_quantile_loss_is_least_at_the_quantile() -> None:
    sample = torch.arange(1001.0)[:, None]
    loss = LOSSES.settings("quantile")(name="quantile", quantile=0.9)
    assert loss.of_guessing(1) == 0.5
    costs: list[Tensor] = [loss.summed(torch.full_like(sample, guess), sample, None) for guess in range(0, 1001, 50)]
    assert int(torch.stack(costs).argmin()) * 50 == 900


def test_a_training_learns_numbers_however_its_batches_are_divided(train_params) -> None:
    generator = np.random.default_rng(2)
    brightness = generator.uniform(0, 200, (90, 1))
    images = (brightness[:, :, None, None] + generator.integers(0, 40, (90, 8, 8, 1))).astype(np.uint8)
    targets = 1000 + 3 * brightness
    spec = Spec(inputs=LARGER_IMAGES, targets=NumberTargets(columns=("price",)).fitted(targets[:60]))
    prepared = Prepared(spec, "digest", {"train": Split(images[:60], targets[:60]), "valid": Split(images[60:], targets[60:])})
    changes = {**steps(60, 20), "loss": {"name": "mse"}, "augment": None, "train.metric": "valid/rmse", "train.batch_size": 20}
    trained = [begin(train_params({**changes, "train.micro_batch_size": size}), prepared) for size in (20, 7)]
    for training in trained:
        *_, last = (report.metrics for report in run(training) if report.metrics)
        assert last["valid/rmse"] < 0.2 * targets.std()
    whole, ragged = (weights(training.state) for training in trained)
    for name, tensor in whole.items():
        torch.testing.assert_close(ragged[name], tensor, rtol=1e-3, atol=1e-4)
