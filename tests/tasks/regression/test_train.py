"""Loss and metrics of a regression against their definitions, in the units of the targets, however the samples are divided."""

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
from pipeline.inference import scores
from pipeline.tasks.regression.targets import NumberTargets
from pipeline.tasks.regression.train import Objective
from tests.specs import image_spec
from tests.train.engine.building import begin, run, steps, weights

GENERATOR = np.random.default_rng(1)
TARGETS = GENERATOR.normal((2000.0, -0.5), (15.0, 0.01), (103, 2))
OUTPUTS = torch.from_numpy(GENERATOR.normal(size=(103, 2))).float()
IMAGES = image_spec(shape=(8, 8, 1), classes=("a", "b"), mean=(0.4,), std=(0.3,)).inputs


def spec_of(columns: int) -> Spec:
    return Spec(inputs=IMAGES, targets=NumberTargets(columns=("year", "share")[:columns]).fitted(TARGETS[:, :columns]))


def objective(columns: int, loss: str = "mse") -> Objective:
    return Objective(spec_of(columns), LOSSES.settings(loss)(name=loss))


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("size", [1, 7, 103])
def test_metrics_are_those_of_scikit_learn_in_the_units_of_the_targets(columns: int, size: int) -> None:
    measured, outputs, targets = objective(columns), OUTPUTS[:, :columns], torch.from_numpy(TARGETS[:, :columns])
    parts = [measured.sums(*part) for part in zip(outputs.split(size), targets.split(size), strict=True)]
    sums = {name: sum(part[name].item() for part in parts) for name in parts[0]}
    scale, middle = (TARGETS[:, :columns].std(axis=0), TARGETS[:, :columns].mean(axis=0))
    predicted = outputs.double().numpy() * scale + middle
    expected = {
        "rmse": root_mean_squared_error(targets, predicted),
        "mae": mean_absolute_error(targets, predicted),
        "r2": r2_score(targets, predicted),
    }
    # the targets are rounded to float32 once they are standardised
    assert measured.averages(sums, 103 * columns) == pytest.approx(expected, rel=1e-6)
    loss = measured.loss(outputs.double(), targets).item() / (103 * columns)
    assert loss == pytest.approx((((predicted - TARGETS[:, :columns]) / scale) ** 2).mean(), rel=1e-9)


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
        objective(1).training_loss(OUTPUTS[:, :1, None], torch.from_numpy(TARGETS[:, :1]))


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
    spec = Spec(inputs=IMAGES, targets=NumberTargets(columns=("price",)).fitted(targets[:60]))
    prepared = Prepared(spec, "digest", {"train": Split(images[:60], targets[:60]), "valid": Split(images[60:], targets[60:])})
    changes = {**steps(60, 20), "loss": {"name": "mse"}, "augment": None, "train.metric": "valid/rmse", "train.batch_size": 20}
    trained = [begin(train_params({**changes, "train.micro_batch_size": size}), prepared) for size in (20, 7)]
    for training in trained:
        *_, last = (report.metrics for report in run(training) if report.metrics)
        assert last["valid/rmse"] < 0.2 * targets.std()
    whole, ragged = (weights(training.state) for training in trained)
    for name, tensor in whole.items():
        torch.testing.assert_close(ragged[name], tensor, rtol=1e-3, atol=1e-4)
