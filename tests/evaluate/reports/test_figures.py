"""Figures: they draw for every shape of data, without a warning, and to the same bytes everywhere."""

import numpy as np
import pytest
from PIL import Image

from pipeline.evaluate.reports.figures import canvas, curves, mistakes
from pipeline.evaluate.reports.metrics import Predictions

AWKWARD = ("a formula: $x^2$ \\alpha_{", "咖啡", "two\nlines", "", "x" * 300, "n02105855 Shetland sheepdog")


def predict(num_classes, samples=80, strength=2.0):
    random = np.random.default_rng(num_classes)
    targets = random.integers(0, num_classes, samples)
    logits = random.normal(size=(samples, num_classes)).astype(np.float32)
    logits[np.arange(samples), targets] += strength
    return Predictions.of(logits, targets)


def photograph(samples, height=8, width=8, channels=1):
    return np.random.default_rng(1).integers(0, 256, (samples, height, width, channels), dtype=np.uint8)


def rows(num_rows=20, validate_every=5):
    return [
        {
            "step": 10 * number,
            "learning_rate": 1e-3 / number,
            "train/objective": 3 / number,
            "train/accuracy": 1 - 1 / number,
            "valid/loss": "" if number % validate_every else 4 / number,
            "valid/accuracy": None if number % validate_every else 1 - 1 / number,
        }
        for number in range(1, num_rows + 1)
    ]


def size(path):
    with Image.open(path) as picture:
        picture.load()
        assert set(picture.info) <= {"dpi"}, "nothing but the resolution is written beside the picture"
        return picture.size


@pytest.mark.parametrize("num_classes", [8, 150])
def test_a_confusion_matrix_of_any_size_stays_within_a_screen(tmp_path, num_classes):
    predictions, classes = predict(num_classes), [f"class {number}" for number in range(num_classes)]
    mistakes.plot_confusion(tmp_path / "c.png", targets=predictions.targets, predicted=predictions.predicted, classes=classes)
    assert max(size(tmp_path / "c.png")) < 1700


def test_confusion_counts_by_actual_then_predicted():
    assert mistakes.count(np.array([0, 0, 2]), np.array([0, 1, 2]), 3).tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize("shape", [(6, 9, 3), (300, 2, 4)])
def test_mistakes_of_any_shape_and_number_of_channels(tmp_path, shape):
    mistakes.plot_mistakes(tmp_path / "m.png", images=photograph(80, *shape), predictions=predict(6), classes=AWKWARD, most=3)
    size(tmp_path / "m.png")


def test_the_most_confident_mistakes_come_first():
    logits = np.array([[1.0, 0], [0, 3.0], [0, 2.0], [0, 3.0], [5.0, 0]])
    predictions = Predictions.of(logits, np.array([1, 0, 0, 0, 0]))
    assert predictions.most_confident_mistakes(3).tolist() == [1, 3, 2]


@pytest.mark.parametrize(("strength", "most"), [(100.0, 9), (2.0, 0)])
def test_no_mistake_to_show_gives_a_figure_that_says_so(tmp_path, strength, most):
    predictions = predict(6, strength=strength)
    mistakes.plot_mistakes(tmp_path / "m.png", images=photograph(80), predictions=predictions, classes=AWKWARD, most=most)
    assert size(tmp_path / "m.png") == (720, 240)


def test_pictures_lie_within_the_figure_and_apart():
    for shown in range(1, 40):
        *_, places = mistakes.grid(shown, aspect=1)
        assert len({place[:2] for place in places}) == shown
        assert all(0 <= left < left + width <= 1 and 0 <= bottom < bottom + height <= 1 for left, bottom, width, height in places)


@pytest.mark.parametrize("table", [rows(1), [{"step": "3", "learning_rate": "0.1", "train/objective": "nan", "train/accuracy": "inf"}]])
def test_a_history_with_gaps_is_drawn(tmp_path, table):
    curves.plot_history(tmp_path / "h.png", table)
    size(tmp_path / "h.png")


def test_the_first_panel_shows_the_objective_of_train_and_the_loss_of_valid(tmp_path, monkeypatch):
    panels, plot = [], curves.plot_curves
    monkeypatch.setattr(curves, "plot_curves", lambda axes, *more: (panels.append(axes), plot(axes, *more))[1])
    curves.plot_history(tmp_path / "h.png", rows(10, validate_every=5))
    train, valid = panels[0].get_lines()
    assert list(train.get_ydata()) == [3 / number for number in range(1, 11)]
    assert list(valid.get_ydata()) == [4 / 5, 4 / 10]
    assert panels[0].get_ylabel() == "train objective,\nvalid loss (nats)"


def test_empty_cells_and_numbers_that_are_not_finite_are_left_out():
    table = [{"step": "1", "x": ""}, {"step": 2, "x": None}, {"step": "3", "x": "0.5"}, {"step": 4, "x": float("nan")}, {"step": 5}]
    assert curves.columns([*table, {"step": 6, "x": 0.0}], "x") == ([3, 6], [0.5, 0.0])


def test_labels_can_be_drawn_and_keep_both_ends():
    assert canvas.label("plain", 0, 10) == "plain"
    assert canvas.label("Tyrannosaurus rex (Asia)", 0, 11) == "Tyran…Asia)"
    assert canvas.label("two\n lines", 0, 20) == "two lines"
    assert canvas.label("Café 咖啡", 7, 20) == "#7 Café"
    assert canvas.label("", 7, 20) == "#7"
    assert canvas.label("$5", 0, 20) == r"\$5"
