"""Names of predicted numbers."""

import numpy as np

from pipeline.core.spec import Spec
from pipeline.core.tasks.regression import NumberTargets
from pipeline.tools.predict.tasks.regression import Predictor
from tests.specs import image_spec


def test_a_column_called_input_leaves_the_name_of_the_sample() -> None:
    inputs = image_spec(shape=(2, 2, 1), classes=("a", "b"), mean=(0.4,), std=(0.3,)).inputs
    predictor = Predictor(Spec(inputs=inputs, targets=NumberTargets(columns=("input",), mean=(0.0,), std=(1.0,))), top_k=1)
    (prediction,) = predictor.predictions(["a.png"], np.array([[2.5]], np.float32))
    assert prediction.record() == prediction.row() == {"input": "a.png", "predicted input": 2.5}
    assert prediction.cells() == {"input": "a.png", "predicted input": "2.5"}
