import numpy as np

from pipeline.tasks.classification.predict import Predictor
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
