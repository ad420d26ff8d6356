"""Loss and metrics of a classification against their definitions."""

import pytest
import torch

from pipeline.core.refusal import Refusal
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
