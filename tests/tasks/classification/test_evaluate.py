"""The evaluator of a classification: fed in pieces of any size, it gives the scores of the whole split."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.dummy import DummyClassifier

from pipeline.core.refusal import Refusal
from pipeline.core.tokenizer_description import UNKNOWN
from pipeline.evaluate.reports import recorded
from pipeline.tasks.classification.evaluate import Evaluator, Settings
from pipeline.tasks.classification.predict import Predictor
from tests.specs import image_spec, text_spec

SPEC = image_spec(shape=(4, 4, 1), classes=("a", "b", "c"), mean=(0.5,), std=(0.5,))
SETTINGS = Settings.model_construct(top_k=2, calibration_bins=10, confidence_level=0.95, mistakes=4)
GENERATOR = np.random.default_rng(0)
LOGITS = GENERATOR.normal(size=(50, 3)).astype(np.float32)
TARGETS = GENERATOR.integers(0, 3, 50)


def fed(size: int, logits: np.ndarray = LOGITS) -> Evaluator:
    evaluator = Evaluator(SPEC, SETTINGS)
    for start in range(0, len(logits), size):
        evaluator.add(torch.from_numpy(logits[start : start + size]), torch.from_numpy(TARGETS[start : start + size]))
    return evaluator


def test_the_size_of_the_pieces_changes_no_score() -> None:
    assert fed(1).scores() == fed(7).scores() == fed(50).scores()
    assert fed(7).scores()["accuracy"] == (LOGITS.argmax(1) == TARGETS).mean()


def test_an_uneven_split_is_reported_with_the_guess_of_the_most_frequent_class_and_the_worst_class() -> None:
    """The most frequent class is that of train, as scikit-learn's baseline takes it, although the test split has more samples of another."""
    train, test = np.repeat([0, 1, 2], [2, 9, 4]), np.repeat([0, 1, 2], [1, 3, 6])
    scores = SPEC.targets.baseline_scores(train, test)
    baseline = DummyClassifier(strategy="most_frequent").fit(np.zeros((15, 1)), train)
    assert scores == {"majority_class_accuracy": baseline.score(np.zeros((10, 1)), test)} == {"majority_class_accuracy": 0.3}
    scores |= fed(50).scores()
    worst = min(scores["per_class"], key=lambda name: scores["per_class"][name]["f1"])
    text = (
        f"on 50 samples; always guessing the most frequent class: 0.3000; lowest F1: {scores['per_class'][worst]['f1']:.4f} (class {worst})"
    )
    assert recorded.result_line(scores).endswith(text)


def test_tables_and_figures_are_of_all_pieces_and_mistakes_are_the_most_confident_wrong_predictions(tmp_path: Path) -> None:
    history = [{"step": 1, "learning_rate": 0.1, "train/objective": 1.0, "valid/loss": 1.0}]
    fed(7).write(tmp_path, inputs=np.zeros((50, 4, 4, 1), np.uint8), history=history, model=torch.nn.Identity())
    assert len((tmp_path / "confusion.csv").read_text().splitlines()) == 51
    names = {"confusion.csv", "reliability.csv", "confusion.png", "reliability.png", "mistakes.png", "history.png"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_each_sample_has_a_row_of_predictions_whose_bytes_are_equal_for_equal_scores(tmp_path: Path) -> None:
    keys = [f'a,"b"\n{number}\udcff.png' for number in range(50)]
    for name in ("once", "again"):
        recorded.write_predictions(tmp_path / name, recorded.predictions_table(fed(7).sample_scores(), keys))
    assert (tmp_path / "once").read_bytes() == (tmp_path / "again").read_bytes()
    found = pq.read_table(tmp_path / "once")
    assert found is not None
    rows = found.to_pylist()
    assert list(rows[0]) == ["key", "actual", "predicted", "confidence", "rank", "loss", "correct", "num_targets"]
    assert [row["key"] for row in rows] == [f'a,"b"\n{number}\\udcff.png' for number in range(50)]
    assert [(row["actual"], row["predicted"]) for row in rows] == [
        ("abc"[t], "abc"[p]) for t, p in zip(TARGETS, LOGITS.argmax(1), strict=True)
    ]
    exponentials = np.exp(LOGITS.astype(np.float64))
    assert [row["confidence"] for row in rows] == pytest.approx(exponentials.max(1) / exponentials.sum(1))
    assert sum(row["correct"] for row in rows) / 50 == fed(7).scores()["accuracy"]


def test_logits_that_are_not_finite_are_counted_over_all_pieces() -> None:
    logits = LOGITS.copy()
    logits[13, 0], logits[40, 2] = np.nan, np.inf
    with pytest.raises(Refusal, match=r"not finite for 2 of 50 samples \(the first is sample 13\)"):
        fed(7, logits).scores()


def test_a_rank_beyond_the_classes_is_refused() -> None:
    with pytest.raises(Refusal, match=r"evaluate\.top_k: 4 is more than the 3 classes"):
        Evaluator(SPEC, SETTINGS.model_copy(update={"top_k": 4}))


def test_mistaken_texts_are_a_table_with_unknown_tokens_visible(tmp_path: Path) -> None:
    spec = text_spec(classes=SPEC.targets.output_names, letters="ab")
    evaluator = Evaluator(spec, SETTINGS)
    evaluator.add(torch.from_numpy(LOGITS), torch.from_numpy(TARGETS))
    texts, history = np.tile(np.array([3, 4, UNKNOWN, 3, 0, 0], np.int32), (50, 1)), [{"step": 1, "learning_rate": 0.1}]
    evaluator.write(tmp_path, inputs=texts, history=history, model=torch.nn.Identity())
    header, *lines = (tmp_path / "mistakes.csv").read_text(encoding="utf-8").splitlines()
    assert header == "sample,actual,predicted,confidence,text"
    exponentials = np.exp(LOGITS.astype(np.float64))
    confidence = exponentials.max(1) / exponentials.sum(1)
    wrong = [number for number in np.argsort(-confidence) if LOGITS[number].argmax() != TARGETS[number]][: SETTINGS.mistakes]
    names = [(number, "abc"[TARGETS[number]], "abc"[LOGITS[number].argmax()]) for number in wrong]
    assert [tuple(line.split(",")[:3]) for line in lines] == [(str(number), *classes) for number, *classes in names]
    assert all(line.endswith(",ab\ufffda") for line in lines)


ODD_NAMES = image_spec(shape=(1, 1, 1), classes=("a", "b\x1b[31m", "c" * 99), mean=(0.5,), std=(0.5,))


def test_ties_go_to_the_lower_class_and_top_has_at_most_all_classes() -> None:
    for top_k, expected in ((1, ["a"]), (2, ["a", "c" * 99]), (9, ["a", "c" * 99, "b\x1b[31m"])):
        (prediction,) = Predictor(ODD_NAMES, top_k=top_k).predictions(["x"], np.array([[2, 1, 2]], np.float32))
        assert [label for label, _ in prediction.top] == expected
        assert (prediction.label, prediction.probability) == prediction.top[0]


def test_probabilities_of_extreme_logits_are_finite_and_recorded_with_seven_digits() -> None:
    (prediction,) = Predictor(ODD_NAMES, top_k=3).predictions(["x"], np.array([[3e38, -3e38, 3e38]], np.float32))
    assert prediction.record()["top"][0] == {"class": "a", "probability": 0.5}
    (prediction,) = Predictor(ODD_NAMES, top_k=1).predictions(["x"], np.array([[0, 0, 0]], np.float32))
    assert prediction.record()["probability"] == 0.3333333
