"""The losses and the weights of the classes, against their definitions and in trainings."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pipeline.__main__ import main
from pipeline.core.prepared import Prepared, Split
from pipeline.core.refusal import Refusal
from pipeline.core.registry import LOSSES
from pipeline.inference.params import LossSettings
from pipeline.tasks.classification.targets import ClassTargets
from pipeline.tasks.language_modeling.targets import NextTokenTargets
from pipeline.tasks.multi_label.targets import LabelTargets
from pipeline.tasks.regression.targets import NumberTargets
from pipeline.tasks.sequence.targets import SequenceTargets
from pipeline.tools.check.command import refuse_unfit_loss
from pipeline.train.engine import update
from pipeline.train.loss_trial import refuse_unfit
from tests import project
from tests.imports import TOP
from tests.train.engine.building import begin, run, steps

LOGITS = torch.randn(6, 3, generator=torch.Generator().manual_seed(1)) * 4
CLASSES = torch.tensor([0, 2, 1, 1, 0, 2])
SHARES = torch.tensor([[0.75, 0.25, 0.0], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5], [0.0, 0.4, 0.6], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
WEIGHTS = torch.tensor([0.5, 2.0, 1.25])
FOCAL: dict[str, Any] = {"name": "focal", "class_weights": "balanced", "gamma": 2.0}
LABELS = {"positive_weights": "balanced", "threshold": 0.5}
BALANCED = {"name": "cross_entropy", "class_weights": "balanced", "label_smoothing": 0.1}


def loss(name: str, **settings: float) -> LossSettings:
    found: LossSettings = LOSSES.settings(name)(name=name, class_weights="none", **settings)
    return found


def with_gradient(chosen: LossSettings, logits: Tensor, targets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    logits = logits.clone().requires_grad_()
    found = chosen.summed(logits, targets, weights)
    found.backward()
    assert logits.grad is not None
    return found.detach(), logits.grad


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weighted"])
@pytest.mark.parametrize("targets", [CLASSES, SHARES], ids=["classes", "shares"])
def test_the_focal_loss_with_gamma_0_is_the_cross_entropy_to_the_bit(targets: Tensor, weights: Tensor | None) -> None:
    focal = with_gradient(loss("focal", gamma=0.0), LOGITS, targets, weights)
    expected = with_gradient(loss("cross_entropy", label_smoothing=0.0), LOGITS, targets, weights)
    assert all(torch.equal(one, other) for one, other in zip(focal, expected, strict=True))


@pytest.mark.parametrize("targets", [CLASSES, SHARES], ids=["classes", "shares"])
def test_weights_and_probabilities_multiply_the_loss_of_each_class(targets: Tensor) -> None:
    shares = targets if targets.is_floating_point() else torch.eye(3)[targets]
    logarithms = LOGITS.double().log_softmax(-1)
    for gamma in (0.5, 2.0):
        expected = -(shares * WEIGHTS * (1 - logarithms.exp()) ** gamma * logarithms).sum()
        assert loss("focal", gamma=gamma).summed(LOGITS, targets, WEIGHTS).item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 1e-9, 0.1])
@pytest.mark.parametrize("targets", [CLASSES, SHARES], ids=["classes", "shares"])
def test_a_mixed_sample_costs_the_weighted_losses_of_its_parts(targets: Tensor, smoothing: float) -> None:
    """As in Zhang et al. (2017), the losses of the two targets are added, weighted by their shares. Smoothing does not change a sample's weight."""
    shares = targets if targets.is_floating_point() else torch.eye(3)[targets]
    parts = [
        shares[:, number] * weight * cross_entropy(LOGITS, torch.full((6,), number), reduction="none", label_smoothing=smoothing)
        for number, weight in enumerate(WEIGHTS)
    ]
    found = loss("cross_entropy", label_smoothing=smoothing).summed(LOGITS, targets, WEIGHTS)
    assert found.item() == pytest.approx(sum(parts).sum().item(), rel=1e-5)
    mix, weights = torch.tensor([[0.5, 0.5]]), torch.tensor([0.55, 5.5])
    _, gradient = with_gradient(loss("cross_entropy", label_smoothing=smoothing), torch.zeros(1, 2), mix, weights)
    assert gradient[0].tolist() == pytest.approx([1.2375 * (1 - smoothing), -1.2375 * (1 - smoothing)])


def test_a_smoothed_target_of_a_frequent_class_stays_the_most_probable_one_beside_a_rare_class() -> None:
    """A rare class has a large weight, which must not multiply its small share of the target of every sample."""
    logits, weights = torch.zeros(1, 2, requires_grad=True), torch.tensor([0.5, 50.0])
    loss("cross_entropy", label_smoothing=0.05).summed(logits, torch.tensor([0]), weights).backward()
    assert logits.grad is not None
    assert logits.grad[0, 0] < 0 < logits.grad[0, 1]


def test_the_focal_loss_of_a_certain_prediction_has_a_finite_gradient() -> None:
    certain = torch.tensor([[200.0, 0.0, 0.0]])
    for target in ([0], [1]):
        assert all(part.isfinite().all() for part in with_gradient(loss("focal", gamma=0.5), certain, torch.tensor(target), None))


def test_guessing_costs_a_target_the_loss_of_equal_probabilities() -> None:
    assert loss("focal", gamma=2.0).of_guessing(4) == pytest.approx(0.75**2 * np.log(4))


def test_balanced_weights_have_mean_1_over_the_targets_and_an_absent_class_has_none() -> None:
    targets = np.repeat([0, 1, 3], [60, 30, 10])
    weights = loss("focal", gamma=2.0).model_copy(update={"class_weights": "balanced"}).weights(targets, 4)
    assert weights is not None
    assert weights[targets].mean().item() == pytest.approx(1.0)
    assert (weights / weights[0]).tolist() == pytest.approx([1, 2, 0, 6])


@pytest.fixture
def uneven(prepared: Prepared) -> Prepared:
    """Return the data of `prepared` without most train samples of the last class."""
    train = prepared.train
    kept = (train.targets < 2) | (np.arange(len(train)) < 10)
    return Prepared(prepared.spec, "uneven", {**prepared.splits, "train": Split(train.inputs[kept], train.targets[kept])})


def gradient(train_params, prepared: Prepared, changes: dict[str, Any], micro_batch_size: int) -> Tensor:
    """Return the gradient of the first batch and its loss, in float64."""
    training = begin(train_params({"train.batch_size": 16, "train.micro_batch_size": 16, **changes}), prepared)
    training.state.model.double()
    batches = training.batches(0)
    batch, step = next(batches), training.step()
    step.begin(batch.num_targets, learning_rate=0.0)
    found, _ = update.accumulate_gradients(training.state, batch, micro_batch_size, seed=training.plan.seed, step=step)
    batches.close()
    return torch.cat([*(parameter.grad.flatten() for parameter in training.state.parameters if parameter.grad is not None), found[None]])


@pytest.mark.parametrize("chosen", [FOCAL, BALANCED], ids=lambda chosen: chosen["name"])
def test_a_weighted_batch_has_the_same_gradient_in_micro_batches_and_lanes(train_params, uneven: Prepared, chosen: dict[str, Any]) -> None:
    changes = {"loss": chosen, "augment.mixup": 0.4}
    whole = gradient(train_params, uneven, changes, 16)
    assert not torch.allclose(whole, gradient(train_params, uneven, changes | {"loss": chosen | {"class_weights": "none"}}, 16), rtol=1e-3)
    for lanes, size in ((1, 5), (1, 1), (4, 4), (4, 3)):
        assert torch.allclose(gradient(train_params, uneven, changes | {"train.lanes": lanes}, size), whole, rtol=0, atol=1e-12)


def test_the_loss_of_a_validation_is_the_plain_cross_entropy(train_params, uneven: Prepared) -> None:
    rows = []
    for chosen in (FOCAL, BALANCED | {"class_weights": "none", "label_smoothing": 0.0}):
        [report] = run(begin(train_params({**steps(1), "loss": chosen, "optimizer.learning_rate": 1e-30}), uneven))
        rows.append(report.metrics)
    assert rows[0]["valid/loss"] == rows[1]["valid/loss"]
    assert rows[0]["train/objective"] < 0.9 * rows[1]["train/objective"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": FOCAL}, "loss.name: focal is not a loss of this task: run `python -m pipeline set loss=cross_entropy`"),
        ({"loss.class_weights": "balanced"}, "loss.class_weights: needs a task with classes, but this task has none: write `loss.class_weights: none`"),
        ({"loss.label_smoothing": 0.1}, "loss.label_smoothing: needs a task with classes, but this task has none: write `loss.label_smoothing: 0.0`"),
    ],
    ids=["focal", "weights", "smoothing"],
)  # fmt: skip
def test_a_language_model_has_the_plain_cross_entropy(tmp_path: Path, monkeypatch, capsys, changes: dict[str, Any], message: str) -> None:
    monkeypatch.chdir(project.make(tmp_path, changes, setting="code"))
    assert main(["check"]) == 2
    assert re.fullmatch(rf"error: params\.yaml:\d+: {re.escape(message)}\n", capsys.readouterr().err)


def test_the_loss_of_the_docs_is_one_file_and_trains(own, train_params, uneven: Prepared) -> None:
    text = (TOP / "docs/extending.md").read_text(encoding="utf-8")
    (example,) = re.findall(
        r"`pipeline/losses/generalised\.py`.*?```python\n(.*?class Settings\(ClassLossSettings\).*?)```", text, re.DOTALL
    )
    own(LOSSES, "generalised", example)
    section = {"name": "generalised", "class_weights": "balanced", "q": 0.7}
    expected = (1 - LOGITS.softmax(-1)[range(6), CLASSES] ** 0.7).sum() / 0.7
    assert LOSSES.settings("generalised")(**section).summed(LOGITS, CLASSES, None).item() == pytest.approx(expected.item(), rel=1e-5)
    objectives = [
        each.metrics["train/objective"] for each in run(begin(train_params({**steps(40, 20), "loss": section}), uneven)) if each.metrics
    ]
    assert objectives[-1] < 0.8 * objectives[0]


CLASS = """
from typing import Literal
from pipeline.inference.params import ClassLossSettings, LabelLossSettings, LossSettings, NumberLossSettings
from torch.nn.functional import cross_entropy
class Settings(ClassLossSettings):
    name: Literal["own"]
"""
SUMMED = CLASS + "    def summed(self, logits, targets, weights):\n        return "
OF_CLASSES = CLASS + "    def of_classes(self, logits):\n        return "
NUMBERS = CLASS.replace("(Class", "(Number")
OF_LABELS = CLASS.replace("(Class", "(Label")
BROKEN = {
    "a mean": (SUMMED + "cross_entropy(logits, targets, weights)", r" the loss of 12 targets is \d\.\d+, but .* return the sum over all targets, not"),
    "no weights": (SUMMED + "cross_entropy(logits, targets, reduction='sum')", " a target of weight 2 does not count twice: multiply the losses by `weights`"),
    "one loss for each target": (SUMMED + "cross_entropy(logits, targets, reduction='none')", r" `summed` returns a tensor of shape \(12,\): return a scalar"),
    "nan": (OF_CLASSES + "logits.log()", " the loss or its gradient is not finite for random outputs"),
    "an error": (OF_CLASSES + "logits[:, 10]", "8: fails: IndexError: index 10 is out of bounds .*: correct it, as docs/extending"),
    "no value of guessing": (OF_CLASSES + "-logits.log_softmax(-1)\n    def of_guessing(self, num_outputs):\n        return float('nan')", " `of_guessing` returns nan: return"),
    "a constant": (OF_CLASSES + "logits * 0 + 1", " the gradient of the loss is 0 for random outputs"),
    "another sign": (OF_CLASSES + "logits.log_softmax(-1)", " the loss is not smaller if the outputs are those of the targets than if they are far"),
    "no targets in it": (SUMMED + "logits.square().sum() * (1 if weights is None else weights.mean())", " the loss is not smaller if"),
    "a count of calls": (
        OF_CLASSES + "-(logits * (1 + len(CALLS.append(0) or CALLS) // 30)).log_softmax(-1)\nCALLS = []", " the loss differs in further calls with equal"
    ),
    "random numbers": (OF_CLASSES + "-logits.log_softmax(-1) * (1 + __import__('random').random() / 1e4)", " draws random numbers from Python's random"),
    "changed targets": (SUMMED + "cross_entropy(logits, targets.clone(), weights, reduction='sum') + targets.mul_(0).sum()", " the loss changes its arguments"),
    "no method": (CLASS, r" its class `Settings` has no method `of_classes\(self, logits\)`: define it"),
    "a mean of labels": (OF_LABELS + "    def of_present(self, logits):\n        return logits.square().mean()", r" `of_present` returns a tensor of shape \(\) for \(12, 3\)"),
    "no targets": (CLASS.replace("(Class", "("), r" its class `Settings` has no method `fits\(cls, targets\)`: define it"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_loss_is_refused_with_its_file_and_the_remedy(own, train_params, case: str) -> None:
    code, message = BROKEN[case]
    own(LOSSES, "own", code)
    numbers, labels = (f"({kind}LossSettings)" in code for kind in ("Number", "Label"))
    section = (
        {"name": "own"} if numbers or "(LossSettings)" in code else {"name": "own", **(LABELS if labels else {"class_weights": "balanced"})}
    )
    params = train_params({"loss": section, "augment.mixup": 0.4})
    with pytest.raises(Refusal, match=rf"^(loss\.name: )?pipeline/losses/own\.py:\s?{message}"):
        refuse_unfit_loss(params, NumberTargets if numbers else LabelTargets if labels else ClassTargets, 3)


def test_good_losses_of_every_task_pass_the_trial(train_params) -> None:
    for targets, sections in (
        (ClassTargets, [FOCAL | {"gamma": 0.5}, BALANCED]),
        *((targets, [BALANCED | {"class_weights": "none", "label_smoothing": 0.0}]) for targets in (NextTokenTargets, SequenceTargets)),
        (LabelTargets, [{**LABELS, "name": "binary_cross_entropy"}, {**LABELS, "name": "binary_focal", "gamma": 0.5}]),
        (NumberTargets, [{"name": "huber", "delta": 1.0}, {"name": "mae"}, {"name": "mse"}, {"name": "quantile", "quantile": 0.5}]),
    ):
        for section in sections:
            refuse_unfit_loss(
                train_params({"loss": section, "augment.mixup": 0.4 if targets in (ClassTargets, LabelTargets) else 0.0}), targets, 5
            )


@pytest.mark.parametrize(
    "code",
    [
        OF_CLASSES + "(1 + logits.logsumexp(-1, keepdim=True) - logits).clamp(min=0)",  # a margin: no gradient where it is satisfied
        OF_CLASSES + "1 - logits.softmax(-1)",  # symmetric: flat far from the target
        OF_CLASSES
        + "-logits.log_softmax(-1) + 0.1 * logits.square().mean(-1, keepdim=True)",  # a regulariser, which does not depend on the targets
        NUMBERS + "    def of_errors(self, errors):\n        return (errors.abs() - 5).clamp(min=0)",  # no gradient below 5
        NUMBERS + "    def of_errors(self, errors):\n        return 1 - (-errors.square()).exp()",  # flat far from the target
        OF_LABELS + "    def of_present(self, logits):\n        return (1 - logits).clamp(min=0)",
    ],
)
def test_an_unusual_loss_passes_the_trial(own, train_params, code: str) -> None:
    own(LOSSES, "own", code)
    numbers, labels = (f"({kind}LossSettings)" in code for kind in ("Number", "Label"))
    params = train_params({"loss": {"name": "own"} if numbers else {"name": "own", **(LABELS if labels else {"class_weights": "none"})}})
    refuse_unfit_loss(params, NumberTargets if numbers else LabelTargets if labels else ClassTargets, 3)


def test_a_quantile_that_no_metric_follows_exports_the_last_weights(train_params) -> None:
    section = {"name": "quantile", "quantile": 0.9}
    last = {"train.export_weights": "last", "train.patience": None}
    train_params({"loss": section, **last})
    for changes in ({"train.export_weights": "best"}, {"train.patience": 3}):
        with pytest.raises(Refusal, match=r"train: export_weights: quantile with these settings makes valid/\w+ worse"):
            train_params({"loss": section, **last, **changes})


def test_check_and_train_try_a_loss_first(own, train_params, uneven: Prepared, tmp_path: Path, monkeypatch, capsys) -> None:
    own(LOSSES, "own", BROKEN["a mean"][0])
    section = {"name": "own", "class_weights": "none"}
    monkeypatch.chdir(project.make(tmp_path / "project", {"loss": section}))
    assert main(["check"]) == 2
    message = rf"loss\.name: pipeline/losses/own\.py:{BROKEN['a mean'][1]} their mean"
    assert re.fullmatch(rf"error: params\.yaml:\d+: {message}\n", capsys.readouterr().err)
    with pytest.raises(Refusal, match=f"^{message}$"):
        begin(train_params({"loss": section}), uneven)


def test_a_tensor_of_a_loss_on_another_device_is_refused(own, train_params) -> None:
    own(LOSSES, "own", OF_CLASSES.replace("\nfrom typing", "\nimport torch\nfrom typing") + "-logits.log_softmax(-1) * torch.ones(3)")
    params = train_params({"loss": {"name": "own", "class_weights": "none"}, "augment": None})
    refuse_unfit(params, ClassTargets, 3)
    with pytest.raises(Refusal, match=r"^loss\.name: pipeline/losses/own\.py:9: fails: RuntimeError: "):
        refuse_unfit(params, ClassTargets, 3, "meta")
