"""The evaluator of several labels a sample: fed in pieces of any size, it gives the scores of scikit-learn, also of each label."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, log_loss, precision_recall_fscore_support

from pipeline.core.refusal import Refusal
from pipeline.core.spec import Spec
from pipeline.evaluate.reports import recorded
from pipeline.tasks.multi_label.evaluate import Evaluator, Settings
from pipeline.tasks.multi_label.targets import LabelTargets
from tests.specs import image_spec

IMAGES = image_spec(shape=(2, 2, 1), classes=("a", "b"), mean=(0.4,), std=(0.3,)).inputs
GENERATOR = np.random.default_rng(3)
ACTUAL = (GENERATOR.random((60, 3)) < (0.6, 0.3, 0.1)).astype(np.uint8)
LOGITS = torch.from_numpy(GENERATOR.normal(size=(60, 3)) + 2 * ACTUAL - 1).float()
THRESHOLDS = (0.5, 0.3, 0.2)
TARGETS = LabelTargets(labels=("dog", "night", "snow"), thresholds=THRESHOLDS)
COMMON = {"name": "multi_label", "batch_size": 8, "test_time_augmentation": "none", "confidence_level": 0.9}
HISTORY = [{"step": 1, "learning_rate": 0.1, "train/objective": 1.0, "valid/loss": 1.0, "valid/micro_f1": 0.1}]


def fed(size: int, logits: torch.Tensor = LOGITS) -> Evaluator:
    evaluator = Evaluator(Spec(inputs=IMAGES, targets=TARGETS), Settings.model_validate({**COMMON, "metrics": ()}))
    for start in range(0, len(logits), size):
        evaluator.add(logits[start : start + size], torch.from_numpy(ACTUAL[start : start + size]))
    return evaluator


def test_the_scores_are_those_of_scikit_learn_for_pieces_of_any_size() -> None:
    scores, probabilities = fed(7).scores(), LOGITS.double().sigmoid().numpy()
    predicted = probabilities > THRESHOLDS
    assert fed(60).scores() == scores
    found = {
        "loss": np.mean([log_loss(ACTUAL[:, number], probabilities[:, number]) for number in range(3)]),
        "average_precision": average_precision_score(ACTUAL, probabilities),
        "macro_f1": f1_score(ACTUAL, predicted, average="macro"),
        "micro_f1": f1_score(ACTUAL, predicted, average="micro"),
        "exact_match": accuracy_score(ACTUAL, predicted),
    }
    for name, expected in found.items():
        assert scores[name] == pytest.approx(expected, rel=1e-9), name
        if name != "loss":
            low, high = scores[f"{name}_interval"].values()
            assert low < scores[name] < high
    columns = ("precision", "recall", "f1", "support")
    for number, of_label in enumerate(zip(*precision_recall_fscore_support(ACTUAL, predicted, zero_division=0), strict=True)):
        expected = dict(zip(columns, of_label, strict=True)) | {
            "average_precision": average_precision_score(ACTUAL[:, number], probabilities[:, number])
        }
        assert scores["per_label"][TARGETS.labels[number]] == pytest.approx(expected, rel=1e-9)
    line = recorded.result_line(scores | TARGETS.baseline_scores(ACTUAL, ACTUAL))
    assert line.startswith(f"test average_precision {scores['average_precision']:.4f} (between ")
    assert "; at random: 0." in line
    assert "; lowest F1: " in line
    assert "(label " in line


def test_the_baseline_answers_the_labels_that_most_train_samples_have() -> None:
    scores = TARGETS.baseline_scores(ACTUAL[:30], ACTUAL[30:])
    guess = np.broadcast_to(np.array([1, 0, 0]), (30, 3))
    assert scores == {
        "majority_labels_micro_f1": pytest.approx(f1_score(ACTUAL[30:], guess, average="micro")),
        "majority_labels_exact_match": accuracy_score(ACTUAL[30:], guess),
        "random_average_precision": pytest.approx(average_precision_score(ACTUAL[30:], np.zeros((30, 3)))),
    }


def test_each_sample_has_its_labels_and_counts_as_correct_if_all_are(tmp_path: Path) -> None:
    evaluator = fed(60)
    scores = evaluator.sample_scores()
    predicted = LOGITS.double().sigmoid().numpy() > THRESHOLDS
    assert scores.correct is not None
    assert scores.correct.tolist() == (predicted == ACTUAL).all(axis=1).astype(int).tolist()
    assert scores.loss.mean() == pytest.approx(evaluator.scores()["loss"], rel=1e-12)
    names = [";".join(np.array(TARGETS.labels)[row == 1]) for row in ACTUAL]
    assert recorded.predictions_table(scores, None)["actual"].to_pylist() == names
    evaluator.write(tmp_path, inputs=np.zeros((60, 2, 2, 1)), history=HISTORY, model=torch.nn.Identity())
    assert {"labels.png", "pairs.png", "history.png"} == {path.name for path in tmp_path.iterdir()}


def test_a_score_that_no_draw_determines_has_no_interval() -> None:
    scores = fed(1, LOGITS[:1]).scores() | TARGETS.baseline_scores(ACTUAL, ACTUAL[:1])
    assert {"average_precision", "random_average_precision"}.isdisjoint({*scores, *scores["per_label"]["dog"]})
    assert not any(name.endswith("_interval") for name in scores)


def test_what_cannot_be_scored_is_refused() -> None:
    broken = LOGITS.clone()
    broken[3, 1] = torch.nan
    with pytest.raises(Refusal, match=r"^the model's outputs are not finite for 1 of 60 samples .*: its training diverged"):
        fed(60, broken).scores()
    with pytest.raises(ValidationError, match="macro_f1 is a score that this task always has: leave it out"):
        Settings.model_validate({**COMMON, "metrics": ("macro_f1",)})
