"""The numbers of evaluate, against scikit-learn and against cases worked by hand, and their tables."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from pipeline.core.refusal import Refusal
from pipeline.evaluate.reports import metrics, recorded
from pipeline.evaluate.reports.metrics import Predictions
from pipeline.inference.scores import Calibration
from pipeline.tasks.classification.evaluate import Settings, scored

SETTINGS = Settings(
    name="classification",
    batch_size=32,
    top_k=3,
    calibration_bins=10,
    confidence_level=0.95,
    mistakes=4,
    test_time_augmentation="none",
    metrics=(),
)


def evaluate(logits, targets, classes, settings):
    """The scores of samples that are given at once."""
    return scored(Predictions.joined([Predictions.of(logits, targets)]), classes, settings)


def names(num_classes):
    return tuple(f"class {number}" for number in range(num_classes))


def draw(seed, samples, num_classes):
    random = np.random.default_rng(seed)
    return random.normal(size=(samples, num_classes)).astype(np.float32), random.integers(0, num_classes, samples)


def softmax(logits):
    exponents = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return exponents / exponents.sum(axis=1, keepdims=True)


def leaves(value):
    return [leaf for member in value.values() for leaf in leaves(member)] if isinstance(value, dict) else [value]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 60), st.integers(2, 7))
def test_the_metrics_are_those_of_scikit_learn(seed, samples, num_classes):
    logits, targets = draw(seed, samples, num_classes)
    labels, predicted = range(num_classes), logits.argmax(axis=1)
    result = evaluate(logits, targets, names(num_classes), SETTINGS)
    precision, recall, f1, support = reference.precision_recall_fscore_support(targets, predicted, labels=labels, zero_division=0)
    assert result["accuracy"] == pytest.approx(reference.accuracy_score(targets, predicted))
    assert result["loss"] == pytest.approx(reference.log_loss(targets, softmax(logits), labels=labels))
    assert result["macro_f1"] == pytest.approx(f1[support > 0].mean())
    expected = zip(precision, recall, f1, support, strict=True)
    for scores, row in zip(result["per_class"].values(), expected, strict=True):
        assert list(scores.values()) == pytest.approx(list(row))
    if num_classes > SETTINGS.top_k:
        assert result["top_k_accuracy"] == pytest.approx(reference.top_k_accuracy_score(targets, logits, k=3, labels=labels))
    else:
        assert "top_k_accuracy" not in result, "it would be 1"


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 60), st.sampled_from([1e-3, 1.0, 1e4, 1e37]))
def test_every_number_is_finite_and_survives_json(seed, samples, scale):
    logits, targets = draw(seed, samples, 3)
    result = evaluate(logits * np.float32(scale), targets, names(3), SETTINGS)
    assert np.isfinite(leaves(result)).all()
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_among_equal_logits_the_lower_class_is_the_likelier():
    predictions = Predictions.of(np.zeros((4, 4), np.float32), np.arange(4))
    assert predictions.predicted.tolist() == [0, 0, 0, 0]
    assert predictions.rank.tolist() == [0, 1, 2, 3]
    assert ((predictions.rank == 0) == predictions.correct).all()


def test_the_calibration_error_worked_by_hand():
    confidence = np.array([0.95, 0.85, 0.9, 0.3, 0.5])
    correct = np.array([True, False, True, True, False])
    calibration = Calibration.of(confidence, correct, 5)
    assert calibration.centres.tolist() == pytest.approx([0.3, 0.5, 0.9])
    assert calibration.confidence.tolist() == pytest.approx([0.3, 0.5, 0.9])
    assert calibration.accuracy.tolist() == pytest.approx([1, 0, 2 / 3])
    assert calibration.samples.tolist() == [1, 1, 3]
    assert calibration.error == pytest.approx((0.7 + 0.5 + 3 * (0.9 - 2 / 3)) / 5)


def test_where_all_are_right_the_interval_begins_where_that_would_be_rare():
    """An accuracy of `low` gives `samples` right answers in a row with a probability of 2.5%."""
    samples = 10
    interval = metrics.accuracy_interval(np.ones(samples, bool), 0.95)
    assert interval == {"low": pytest.approx(0.025 ** (1 / samples)), "high": 1.0}
    assert metrics.accuracy_interval(np.zeros(samples, bool), 0.95) == {"low": 0.0, "high": pytest.approx(1 - interval["low"])}


def read(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_confusion_table_has_a_row_a_sample(tmp_path):
    path = tmp_path / "plots" / "confusion.csv"
    classes = ("cat", 'a "dog", wet', "two\nlines")
    recorded.write_confusion(path, targets=np.array([0, 1, 2]), predicted=np.array([0, 2, 1]), classes=classes)
    assert [tuple(row.values()) for row in read(path)] == [("cat", "cat"), (classes[1], classes[2]), (classes[2], classes[1])]


def test_the_reliability_table_keeps_every_digit_and_leaves_empty_bins_out(tmp_path):
    path = tmp_path / "reliability.csv"
    calibration = Calibration.of(np.array([0.95, 0.1 + 0.2, 0.85]), np.array([True, False, False]), 5)
    recorded.write_reliability(path, calibration)
    rows = read(path)
    assert list(rows[0]) == ["bin_centre", "confidence", "accuracy", "samples"]
    assert [float(row["confidence"]) for row in rows] == calibration.confidence.tolist()
    assert [row["samples"] for row in rows] == ["1", "2"]


def test_a_missing_table_is_taken_from_git_before_it_is_trained_again(tmp_path: Path) -> None:
    path = tmp_path / "plots/train/history.csv"
    with pytest.raises(
        Refusal, match=f"{path}: cannot be read .*: run `git restore {path.parent}` if it was committed, or `dvc repro -f train`"
    ):
        recorded.read_table(path, "train")
