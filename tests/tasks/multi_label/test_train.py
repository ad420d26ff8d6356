"""Loss and metrics of several labels a sample against scikit-learn and torch, however the samples are divided, and thresholds."""

from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, roc_auc_score
from torch.nn import functional
from torchvision.ops import sigmoid_focal_loss

from pipeline.core.prepared import Prepared, Split
from pipeline.core.refusal import Refusal
from pipeline.core.registry import LOSSES
from pipeline.core.spec import Spec
from pipeline.inference import measuring, scores
from pipeline.inference.params import METRICS, LossSettings
from pipeline.tasks.multi_label.targets import LabelTargets
from pipeline.tasks.multi_label.train import Objective
from pipeline.train.engine import metrics
from tests.specs import image_spec
from tests.train.engine.building import begin, run, same, steps, weights

GENERATOR = np.random.default_rng(1)
TARGETS = torch.from_numpy((GENERATOR.random((103, 4)) < (0.5, 0.3, 0.2, 0.1)).astype(np.uint8))
LOGITS = torch.from_numpy(GENERATOR.normal(size=(103, 4)) + 2 * TARGETS.numpy() - 1).float()
IMAGES = image_spec(shape=(8, 8, 1), classes=("a", "b"), mean=(0.4,), std=(0.3,)).inputs
SPEC = Spec(inputs=IMAGES, targets=LabelTargets(labels=("dog", "indoors", "night", "snow")))
FOCAL = {"name": "binary_focal", "gamma": 2.0}
MIXED = {"augment.mixup": 0.3, "augment.cutmix": 1.0}


def loss(name: str = "binary_cross_entropy", **settings: object) -> LossSettings:
    found: LossSettings = LOSSES.settings(name).model_validate({"name": name, "positive_weights": "none", "threshold": 0.5, **settings})
    return found


@pytest.mark.parametrize("size", [1, 7, 103])
def test_a_validation_reports_the_metrics_of_scikit_learn(size: int) -> None:
    names = (*sorted(SPEC.targets.only_validated), "auroc")
    measured = measuring.Measured(names, SPEC, key="train.metrics", num_samples=103, batch_size=size)
    found = metrics.score(zip(LOGITS.split(size), TARGETS.split(size), strict=True), Objective(SPEC, loss()), measured=measured)
    predicted, probabilities = LOGITS > 0, LOGITS.double().sigmoid()
    expected = {
        "loss": functional.binary_cross_entropy(probabilities, TARGETS.double()).item(),
        "average_precision": average_precision_score(TARGETS, probabilities),
        "macro_f1": f1_score(TARGETS, predicted, average="macro"),
        "micro_f1": f1_score(TARGETS, predicted, average="micro"),
        "exact_match": accuracy_score(TARGETS, predicted),
        "auroc": roc_auc_score(TARGETS, probabilities),
    }
    assert found == pytest.approx(expected, rel=1e-9)


def test_a_metric_of_one_class_a_sample_is_refused() -> None:
    for name in {*METRICS.names} - {"average_precision", "macro_f1", "auroc"}:
        with pytest.raises(Refusal, match=rf"^train.metrics: {name} needs exactly one class a sample: remove it$"):
            METRICS.module(name).Metric.refuse_misfit(SPEC.targets, 4, "train.metrics")


@pytest.mark.parametrize("targets", [TARGETS, torch.rand(103, 4)], ids=["labels", "shares"])
def test_the_losses_are_those_of_torch(targets: torch.Tensor) -> None:
    chosen = loss(positive_weights="balanced")
    positive = chosen.weights(TARGETS.numpy(), 4)
    present = TARGETS.sum(dim=0)
    assert torch.equal(positive, (103 - present) / present)
    expected = partial(functional.binary_cross_entropy_with_logits, LOGITS, targets.float(), reduction="sum")
    for weight in (None, positive):
        assert chosen.summed(LOGITS, targets.float(), weight).item() == pytest.approx(expected(pos_weight=weight).item(), rel=1e-6)
    assert loss("binary_focal", gamma=0.0).summed(LOGITS, targets.float(), None).item() == pytest.approx(expected().item(), rel=1e-6)
    assert chosen.of_guessing(4) == pytest.approx(np.log(2))


def test_the_focal_loss_is_that_of_torchvision_with_a_finite_gradient() -> None:
    expected = sigmoid_focal_loss(LOGITS, TARGETS.float(), alpha=-1, gamma=2, reduction="sum")
    assert loss(**FOCAL).summed(LOGITS, TARGETS.float(), None).item() == pytest.approx(expected.item(), rel=1e-6)
    certain = torch.tensor([[200.0, -200.0]], requires_grad=True)
    loss("binary_focal", gamma=0.5).summed(certain, torch.tensor([[1.0, 0.0]]), None).backward()
    assert certain.grad is not None
    assert certain.grad.isfinite().all()


def test_a_threshold_gives_the_highest_f1_of_all() -> None:
    rounded = (4 * LOGITS).round().double().sigmoid().numpy()  # with ties
    targets = TARGETS.long().numpy()
    for number, threshold in enumerate(scores.best_thresholds(targets, rounded)):
        score = partial(f1_score, targets[:, number])
        assert score(rounded[:, number] > threshold) == max(score(rounded[:, number] > cut) for cut in [0, *rounded[:, number]])
        assert threshold not in rounded[:, number]
    values = np.array([[0.1], [0.2], [0.9]])
    assert scores.best_thresholds(np.zeros((3, 1), int), values) == [0.5]
    assert scores.best_thresholds(np.array([[1], [1], [0]]), values) == [0.05]  # below all, as it is best to predict it for all
    decided = loss(threshold="tuned").decided(SPEC.targets, lambda: (LOGITS, TARGETS))
    assert isinstance(decided, LabelTargets)
    assert decided.thresholds == tuple(scores.best_thresholds(targets, LOGITS.sigmoid().double().numpy()))
    assert decided.has_targets_of(SPEC.targets)
    shifts = np.array([0.01, 0, -0.01, 0.01])
    assert decided.predicted(np.array(decided.thresholds) + shifts).tolist() == [True, False, False, True]
    with pytest.raises(Refusal, match=r"^loss.threshold: tuned needs a validation split"):
        loss(threshold="tuned").refuse_missing_splits({"train", "test"})


def data() -> Prepared:
    """Return images whose corners are bright by their labels."""
    targets = (np.random.default_rng(2).random((90, 4)) < 0.4).astype(np.uint8)
    images = np.random.default_rng(3).integers(0, 90, (90, 8, 8, 1), np.uint8)
    for number, (row, column) in enumerate([(0, 0), (0, 4), (4, 0), (4, 4)]):
        images[targets[:, number] == 1, row : row + 4, column : column + 4] += 150
    return Prepared(SPEC, "digest", {"train": Split(images[:60], targets[:60]), "valid": Split(images[60:], targets[60:])})


@pytest.mark.parametrize("mixed", [{}, MIXED], ids=["plain", "mixed"])
def test_a_training_learns_labels_however_its_batches_are_divided(train_params, mixed: dict[str, float]) -> None:
    still = {f"augment.{name}": 0 for name in ("crop_padding", "cutout")} | {"augment.flip": "none"}
    section = loss(positive_weights="balanced").model_dump()
    changes = {**steps(90, 30), "loss": section, **still, **mixed, "train.metric": "valid/average_precision", "train.batch_size": 20}
    trained = [begin(train_params({**changes, "train.micro_batch_size": size}), data()) for size in (20, 7)]
    for training in trained:
        *_, last = (report.metrics for report in run(training) if report.metrics)
        assert last["valid/average_precision"] > 0.9
        assert training.objective.chance_loss == pytest.approx(np.log(2))
    whole, ragged = (weights(training.state) for training in trained)
    for name, tensor in whole.items():
        torch.testing.assert_close(ragged[name], tensor, rtol=1e-3, atol=1e-3)


def test_an_interrupted_training_ends_in_the_same_weights_and_thresholds(train_params, tmp_path: Path) -> None:
    params = train_params({**steps(8, 2), "loss": loss(threshold="tuned", **FOCAL).model_dump(), **MIXED, "train.metric": "valid/macro_f1"})
    whole = begin(params, data())
    run(whole)
    cut = begin(params, data(), tmp_path)
    for first, _ in pairwise(cut.reports()):
        if first.step == 5:
            break
    assert cut.save_now()
    resumed = begin(params, data(), tmp_path)
    assert resumed.state.step == cut.state.step
    run(resumed)
    assert same(weights(resumed.state), weights(whole.state))
    ends = [training.decided(training.exported()[0]) for training in (resumed, whole)]
    assert ends[0] == ends[1] != SPEC
