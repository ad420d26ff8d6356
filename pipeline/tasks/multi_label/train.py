"""Loss and metrics of samples with several labels."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.inference import scores
from pipeline.tasks.multi_label.targets import HALF
from pipeline.train.engine import objective


class Objective(objective.Objective):
    """The loss that `loss.name` chooses, the micro F1, and the share of samples all of whose labels are right.

    Outputs are logits (n, labels); targets are 0 or 1, or shares (n, labels) from mixup or CutMix. A label is predicted if its probability is above 1/2;
    of shares, those above 1/2 count as labels that the sample has.
    """

    def compared(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and targets (n, labels), both in the same type: float32 at least."""
        objective.refuse_other_shape(outputs, targets)
        outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
        return outputs, targets.to(outputs.dtype)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the binary cross-entropy of all labels in nats, summed."""
        return functional.binary_cross_entropy_with_logits(*self.compared(outputs, targets), reduction="sum")

    def sums(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return the numbers of samples whose labels are all right (`exact`), of labels both predicted and actual (`hits`), and of labels predicted plus
        labels actual (`named`).
        """
        predicted, actual = outputs > 0, targets > HALF
        return {
            "exact": (predicted == actual).all(dim=-1).sum(),
            "hits": (predicted & actual).sum(),
            "named": predicted.sum() + actual.sum(),
        }

    def averages(self, sums: Mapping[str, float], num_targets: float) -> dict[str, float]:
        """Return the micro F1 and the exact match. `sums` are the results of the method `sums`, added up over `num_targets` labels of samples."""
        return {"micro_f1": scores.micro_f1(sums["hits"], sums["named"]), "exact_match": sums["exact"] * self.num_outputs / num_targets}
