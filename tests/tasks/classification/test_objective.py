"""Loss and metrics of a classification against their definitions."""

import pytest
import torch

from pipeline.refusal import Refusal
from tests.engine.building import objective_of


def test_label_smoothing_is_part_of_the_training_loss_alone() -> None:
    logits, targets = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    smooth, plain = objective_of(label_smoothing=0.1), objective_of()
    assert smooth.training_loss(logits, targets) != plain.training_loss(logits, targets)
    assert smooth.loss(logits, targets) == plain.loss(logits, targets) == plain.training_loss(logits, targets)


def test_metrics_are_averages_of_sums() -> None:
    logits, targets = torch.eye(3)[[0, 1, 2, 0]], torch.tensor([0, 1, 0, 2])
    sums = objective_of().sums(logits, targets)
    assert {name: value.item() for name, value in sums.items()} == {"correct": 2}
    assert objective_of().averages({"correct": 2.0, "loss": 9.0}, 4) == {"accuracy": 0.5}


def test_guessing_costs_the_logarithm_of_the_number_of_classes() -> None:
    targets = torch.tensor([1, 4])
    objective = objective_of(num_classes=5)
    assert objective.chance_loss == pytest.approx(objective.loss(torch.zeros(2, 5), targets).item() / 2)


@pytest.mark.parametrize("outputs", [2, 4])
def test_a_model_with_another_number_of_outputs_is_refused(outputs: int) -> None:
    with pytest.raises(
        Refusal, match=rf"^model\.name: this model returns outputs of shape \(5, {outputs}\), but there are 3 classes or tokens"
    ):
        objective_of(num_classes=3).training_loss(torch.zeros(5, outputs), torch.zeros(5, dtype=torch.int64))
