"""Names of predicted numbers."""

import numpy as np
import pytest

from pipeline.core.spec import Spec
from pipeline.tasks.regression.predict import Predictor, rounded
from pipeline.tasks.regression.targets import NumberTargets
from tests.specs import image_spec


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
