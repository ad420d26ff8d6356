"""The linear baseline and the importance of columns of tables, against scikit-learn and the definition."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge, RidgeClassifier

from pipeline.core.prepared import Prepared, Split
from pipeline.core.spec import Spec, Targets
from pipeline.evaluate import columns
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
