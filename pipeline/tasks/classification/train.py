"""Loss and metrics of a classification."""

from collections.abc import Mapping

import torch
from torch import Tensor

from pipeline.train.engine import objective


class Objective(objective.Objective):
    """The loss that `loss.name` chooses, and the accuracy.

    Outputs are logits (n, classes); targets are class numbers (n,), or class probabilities (n, classes) from mixup or CutMix.
    """

    def sums(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return a dict with one entry: `correct`, the number of correct predictions, as a tensor on the device of `outputs`.

        If the targets are class probabilities, a prediction is correct if it is the class with the highest probability.
        """
        classes = targets.argmax(-1) if targets.is_floating_point() else targets
        # whole numbers at once: `sum` would first turn truth values into them
        return {"correct": torch.eq(outputs.argmax(-1), classes, out=torch.empty_like(classes)).sum()}

    def averages(self, sums: Mapping[str, float], num_targets: float) -> dict[str, float]:
        """Return the accuracy. `sums` are the results of the method `sums`, added up over `num_targets` targets."""
        return {"accuracy": sums["correct"] / num_targets}
