"""Scoring a split: predictions, and the loss and accuracy that validation needs."""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from pipeline.engine import precision
from pipeline.engine.update import summed_loss

Scored = tuple[Tensor, Tensor, int]
"""Inputs and targets of one full batch, and how many of its samples are real: the rest pad it."""


def predict(
    classifier: nn.Module, batches: Iterable[Scored], *, used: precision.Used, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits (n, classes) in float32 and targets (n,) of each batch, without the padding; the mode of the module is put back."""
    training = classifier.training
    classifier.eval()
    try:
        for inputs, targets, real in batches:
            with torch.no_grad(), precision.autocast(used, device):
                logits = classifier(inputs)
            yield logits[:real].float(), targets[:real]
    finally:
        classifier.train(training)


def score(
    classifier: nn.Module,
    batches: Callable[[], Iterable[Scored]],
    *,
    used: precision.Used,
    device: torch.device,
    pause: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Mean loss (without smoothing) and accuracy over a split; one wait for the device, at the end. `pause()` may raise between batches."""
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    for logits, targets in predict(classifier, batches(), used=used, device=device):
        pause()
        correct = (logits.argmax(-1) == targets).sum()
        loss = summed_loss(logits.double(), targets, 0.0)
        sums += torch.stack((loss, correct.double(), torch.full_like(loss, targets.numel())))
    loss_sum, correct_sum, count = sums.tolist()
    return {"loss": loss_sum / count, "accuracy": correct_sum / count}
