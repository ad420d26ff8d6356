"""Loss and metrics of a classification against their definitions."""

import pytest
import torch
from sklearn.metrics import f1_score

from pipeline.core.refusal import Refusal
from pipeline.evaluate.reports.metrics import Predictions
from pipeline.inference.metrics import macro_f1
from pipeline.tasks.classification.evaluate import scored
from tests.evaluate.reports.test_metrics import SETTINGS
from tests.train.engine.building import objective_of


def test_metrics_are_averages_of_sums() -> None:
    logits, targets = torch.eye(3)[[0, 1, 2, 0]], torch.tensor([0, 1, 0, 2])
    sums = objective_of().sums(logits, targets)
    assert {name: value.item() for name, value in sums.items()} == {"correct": 2}
    shares = 0.2 + 0.4 * torch.eye(3)[targets]
    assert objective_of().sums(logits, shares)["correct"] == 2, "the right answer is the class with the largest share"
    assert objective_of().averages({"correct": 2.0, "loss": 9.0}, 4) == {"accuracy": 0.5}


@pytest.mark.parametrize("outputs", [2, 4])
def test_a_model_with_another_number_of_outputs_is_refused(outputs: int) -> None:
    with pytest.raises(
        Refusal, match=rf"^model\.name: this model returns outputs of shape \(5, {outputs}\), but there are 3 classes, tokens or numbers"
    ):
        objective_of(num_classes=3).training_loss(torch.zeros(5, outputs), torch.zeros(5, dtype=torch.int64))


def test_the_macro_f1_of_a_validation_is_that_of_evaluate_and_of_scikit_learn_however_its_samples_are_divided() -> None:
    """The last class is absent, and the rounding of the logits makes ties."""
    generator, classes = torch.Generator().manual_seed(1), ("a", "b", "c", "d", "absent")
    logits = (torch.randn(301, 5, generator=generator) * 2).round()
    targets = torch.randint(4, (301,), generator=generator)
    metric = macro_f1.Metric(5)
    evaluated = scored(Predictions.of(logits.numpy(), targets.numpy()), classes, SETTINGS)
    for size in (1, 7, 64, 301):
        parts = zip(logits.split(size), targets.split(size), strict=True)
        total = torch.stack([metric.part(*part) for part in parts]).sum(dim=0)
        assert metric.value(total.numpy()) == evaluated["macro_f1"]
    expected = f1_score(targets, logits.numpy().argmax(1), labels=range(4), average="macro", zero_division=0)
    assert evaluated["macro_f1"] == pytest.approx(expected, rel=1e-12)
