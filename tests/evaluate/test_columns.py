"""The linear baseline and the importance of columns, against scikit-learn and the definition; views of an image."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge, RidgeClassifier
from torch import nn

from pipeline.core.prepared import Prepared, Split
from pipeline.core.spec import Spec, Targets
from pipeline.evaluate import columns, tta
from pipeline.inputs.table.description import CategoryColumn, NumberColumn, TableInputs
from pipeline.inputs.table.first_layer import Preprocessing
from pipeline.tasks.classification.targets import ClassTargets
from pipeline.tasks.regression.targets import NumberTargets

GENERATOR = np.random.default_rng(5)
ROWS = np.column_stack([GENERATOR.normal(3, 2, 200), GENERATOR.integers(0, 2, 200).astype(np.float64)])
SIZES = ROWS[:, 0] + 4 * ROWS[:, 1] + GENERATOR.normal(0, 1, 200)
INPUTS = TableInputs(
    columns=(
        NumberColumn(kind="number", name="a", missing=False, mean=3.0, std=2.0),
        CategoryColumn(name="b", missing=False, values=("x", "y"), others=False),
    )
)
FEATURES = np.column_stack([(ROWS[:, 0] - 3) / 2, ROWS[:, 1] == 0, ROWS[:, 1] == 1])


def prepared(targets: Targets, values: np.ndarray) -> Prepared:
    parts = {"train": Split(ROWS[:150], values[:150]), "test": Split(ROWS[150:], values[150:])}
    return Prepared(Spec(inputs=INPUTS, targets=targets), "digest", parts)


def test_the_linear_model_is_the_ridge_regression_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "BLOCK_ROWS", 7)
    numbers = SIZES[:, None]
    data = prepared(NumberTargets(columns=("size",)).fitted(numbers[:150]), numbers)
    found = columns.linear_scores(data, data.split("test"), Preprocessing(INPUTS, channels_last=False))
    residuals = numbers[150:] - Ridge().fit(FEATURES[:150], numbers[:150]).predict(FEATURES[150:]).reshape(-1, 1)
    assert found == {"linear_rmse": pytest.approx(np.sqrt(np.square(residuals).mean()), rel=1e-6)}
    classes = (SIZES > 5).astype(np.int64)
    data = prepared(ClassTargets(classes=("small", "large")), classes)
    found = columns.linear_scores(data, data.split("test"), Preprocessing(INPUTS, channels_last=False))
    assert found == {"linear_accuracy": RidgeClassifier().fit(FEATURES[:150], classes[:150]).score(FEATURES[150:], classes[150:])}


def test_a_column_that_the_loss_does_not_need_has_no_importance() -> None:
    def loss_of(split: Split) -> float:
        return float(np.square(split.inputs[:, 0] - split.targets[:, 0]).mean())

    first, second = columns.importances(INPUTS, Split(ROWS, ROWS[:, :1]), loss_of)
    assert first[:2] == ("a", "number")
    assert first[2] == pytest.approx(2 * ROWS[:, 0].var(), rel=0.2)  # the cells of two rows that have nothing to do with each other
    assert second == ("b", "category", 0.0, 0.0)


IMAGES = torch.arange(2 * 4 * 5 * 3, dtype=torch.uint8).view(2, 4, 5, 3)


class Corner(nn.Module):
    """The first pixel, as logits."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images[:, 0, 0].float()


@pytest.mark.parametrize(("wish", "count"), [("none", 1), ("mirror", 2), ("mirror_translate", 6)])
def test_all_weights_together_are_one_and_no_two_views_are_equal(wish: tta.Views, count: int) -> None:
    weights, found = zip(*tta.views(IMAGES, wish), strict=True)
    assert sum(weights) == 1
    assert len({tuple(view.flatten().tolist()) for view in found}) == len(found) == count
    assert all(view.shape == IMAGES.shape and view.dtype == torch.uint8 for view in found)


def test_a_moved_image_is_a_window_of_the_reflected_one() -> None:
    wide = nn.functional.pad(IMAGES.permute(0, 3, 1, 2).float(), (1,) * 4, mode="reflect").permute(0, 2, 3, 1).to(torch.uint8)
    assert torch.equal(tta.moved(IMAGES, -1), wide[:, :-2, :-2])
    assert torch.equal(tta.moved(IMAGES, 1), wide[:, 2:, 2:])


def test_the_logits_are_averaged_by_the_weights() -> None:
    first = IMAGES.float()
    expected = 0.25 * (first[:, 0, 0] + first[:, 0, 4]) + 0.125 * (first[:, 1, 1] + first[:, 1, 3]) * 2
    assert torch.allclose(tta.Averaged(Corner(), "mirror_translate")(IMAGES), expected)
    assert torch.equal(tta.Averaged(Corner(), "none")(IMAGES), first[:, 0, 0])
