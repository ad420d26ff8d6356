"""Loss and metrics of a language model."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.core.inputs.text import TextInputs
from pipeline.core.spec import Spec
from pipeline.core.tokenizer import Tokenizer
from pipeline.inference.scores import rates
from pipeline.train.engine import objective

if TYPE_CHECKING:
    from pipeline.train.params import LoopSettings


class Objective:
    """Cross-entropy, perplexity, bits per character and per byte, and accuracy.

    Outputs are logits (n, length, tokens); targets are token numbers (n, length), IGNORED at the padding.
    """

    def __init__(self, spec: Spec, settings: "LoopSettings") -> None:  # noqa: ARG002  # the interface is that of every task
        self.num_outputs = spec.num_outputs
        assert isinstance(spec.inputs, TextInputs)
        tokenizer = Tokenizer(spec.inputs.tokenizer)
        self.chance_loss = math.log(spec.num_outputs)
        """The loss of guessing all tokens with equal probability."""
        self.sizes = torch.stack([torch.from_numpy(tokenizer.num_characters), torch.from_numpy(tokenizer.num_bytes)], dim=1)
        """Characters and bytes of each token, (tokens, 2). PAD and END have 0; UNKNOWN counts as one character and one byte."""

    def training_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the summed cross-entropy, in float32 at least. A language model has no label smoothing."""
        objective.refuse_misfit(outputs, self.num_outputs)
        return objective.summed(outputs, targets)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy, summed over all targets that are not IGNORED, in float32 at least."""
        return objective.summed(outputs, targets)

    def sums(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return a dict with three tensors on the device of `outputs`: `correct`, `characters` and `bytes`.

        `correct` is the number of correct predictions. The other two are how many characters and bytes the target tokens have in total.
        """
        if self.sizes.device != targets.device:
            self.sizes = self.sizes.to(targets.device)
        # IGNORED is negative: the number 0, of the padding, has no characters
        characters, size_bytes = self.sizes[targets.clamp(min=0)].flatten(0, -2).sum(dim=0)
        best = outputs.max(-1).indices  # equals argmax, which takes twice as long on a CPU: 3% of a small transformer's step
        return {"correct": (best == targets).sum(), "characters": characters, "bytes": size_bytes}

    def averages(self, sums: Mapping[str, float], num_targets: float) -> dict[str, float]:
        """Return perplexity, bits per character, bits per byte, and accuracy.

        `sums` has the result of the method `loss` as `loss`, and the results of the method `sums`, each added up over `num_targets` targets.
        """
        found = rates(sums["loss"], num_targets, characters=sums["characters"], size_bytes=sums["bytes"])
        return {**found, "accuracy": sums["correct"] / num_targets}

    def counts(self, outputs: Tensor, targets: Tensor) -> None:
        """Return None: there are no metrics of single tokens."""

    def count_metrics(self, counts: NDArray[np.int64]) -> dict[str, float]:  # noqa: ARG002  # there are no counts
        return {}
