"""Loss and metrics of a model that writes a text for each text."""

from collections.abc import Mapping

import torch
from torch import Tensor

from pipeline.inference.scores import perplexity
from pipeline.train.engine import objective


class Objective(objective.Objective):
    """The loss that `loss.name` chooses, and perplexity and accuracy of the tokens, each predicted from the true tokens before it.

    Outputs are logits (n, length, tokens); targets are token numbers (n, length), IGNORED at the padding.
    """

    def sums(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return `correct`, the number of correct predictions, as a tensor on the device of `outputs`."""
        best = outputs.max(-1).indices  # equals argmax, which takes twice as long on a CPU
        return {"correct": torch.eq(best, targets).sum()}

    def averages(self, sums: Mapping[str, float], num_targets: float) -> dict[str, float]:
        """Return the perplexity of the loss, and the accuracy."""
        return {"perplexity": perplexity(sums["loss"] / num_targets), "accuracy": sums["correct"] / num_targets}
