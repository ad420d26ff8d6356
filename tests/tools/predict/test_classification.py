import numpy as np
import pytest

from pipeline.core.refusal import Refusal
from pipeline.tools.predict.tasks.classification import Predictor
from tests.specs import image_spec

SPEC = image_spec(shape=(1, 1, 1), classes=("a", "b\x1b[31m", "c" * 99), mean=(0.5,), std=(0.5,))


def test_ties_go_to_the_lower_class_and_top_has_at_most_all_classes() -> None:
    for top_k, expected in ((1, ["a"]), (2, ["a", "c" * 99]), (9, ["a", "c" * 99, "b\x1b[31m"])):
        (prediction,) = Predictor(SPEC, top_k=top_k).predictions(["x"], np.array([[2, 1, 2]], np.float32))
        assert [label for label, _ in prediction.top] == expected
        assert (prediction.label, prediction.probability) == prediction.top[0]


def test_probabilities_of_extreme_logits_are_finite_and_recorded_with_seven_digits() -> None:
    (prediction,) = Predictor(SPEC, top_k=3).predictions(["x"], np.array([[3e38, -3e38, 3e38]], np.float32))
    assert prediction.record()["top"][0] == {"class": "a", "probability": 0.5}
    (prediction,) = Predictor(SPEC, top_k=1).predictions(["x"], np.array([[0, 0, 0]], np.float32))
    assert prediction.record()["probability"] == 0.3333333


def test_a_logit_that_is_not_finite_is_refused_with_the_name_of_the_input() -> None:
    for bad in (np.nan, np.inf):
        with pytest.raises(Refusal, match=r"^x\\n: the model's logits are not finite"):
            list(Predictor(SPEC, top_k=1).predictions(["x\n"], np.array([[0, bad, 0]], np.float32)))


def test_a_table_has_printable_cells_that_fit_its_columns() -> None:
    for top_k in (1, 3):
        predictor = Predictor(SPEC, top_k=top_k)
        (prediction,) = predictor.predictions(["x\n"], np.array([[0, 1, 2]], np.float32))
        cells, columns = prediction.cells(), predictor.columns()
        assert len(cells) == len(columns)
        assert "".join(cells).isprintable()
        assert len(cells[1]) <= (columns["class"] or 0)
