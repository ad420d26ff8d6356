"""Cross-entropy, with label smoothing: the usual loss of classes, and that of a language model."""

from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.core.refusal import Refusal
from pipeline.core.section import Share
from pipeline.core.spec import Targets
from pipeline.inference.params import ClassLossSettings


class Settings(ClassLossSettings):
    name: Literal["cross_entropy"]
    label_smoothing: Share
    """Share of the target probability that is spread evenly over all classes, or over all tokens of pairs of texts; 0 for none. Must be 0 for other tasks."""

    forms: ClassVar[tuple[str, ...]] = ("class", "tokens")
    RECOMMENDED: ClassVar = {"label_smoothing": 0.0}

    def summed(self, logits: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        if weights is None or not self.label_smoothing:
            return functional.cross_entropy(logits, targets, weights, reduction="sum", label_smoothing=self.label_smoothing)
        # torch would weight the smoothed share of each class by its own weight: a rare class would be most of the target of every sample
        if targets.is_floating_point():  # each part of a mixed sample is a sample with its own weight, whose target is then smoothed
            parts = targets * weights
            smoothed = torch.lerp(parts, parts.mean(-1, keepdim=True), self.label_smoothing)
            return functional.cross_entropy(logits, smoothed, reduction="sum")
        losses = functional.cross_entropy(logits, targets, reduction="none", label_smoothing=self.label_smoothing)
        return (losses * weights[targets.clamp(min=0)]).sum()

    def refuse_misfit(self, targets: type[Targets] | Targets) -> None:
        """Raise Refusal if the targets are neither classes nor tokens, or if a parameter is for classes only and the targets are tokens."""
        super().refuse_misfit(targets)
        for key, plain in {"class_weights": "none", "label_smoothing": 0.0}.items():
            if key not in targets.loss_keys and getattr(self, key) != plain:
                raise Refusal(f"loss.{key}: needs a task with classes, but this task has none: write `loss.{key}: {plain}`")
