"""Scores a split: predictions, and the loss and accuracy for validation."""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from pipeline.engine import precision
from pipeline.engine.update import summed_loss

Scored = tuple[Tensor, Tensor, int]
"""Inputs and targets of one full batch, and the number of its samples that are not padding."""


def predict(
    classifier: nn.Module, batches: Iterable[Scored], *, used: precision.Used, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield logits (n, classes) in float32 and targets (n,) of each batch, without padding; restore the module's mode at the end."""
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
    """Return the mean loss, without label smoothing, and the accuracy over a split.

    The only host synchronisation is at the end. `pause()` is called after each batch and may raise.
    """
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    for logits, targets in predict(classifier, batches(), used=used, device=device):
        pause()
        correct = (logits.argmax(-1) == targets).sum()
        loss = summed_loss(logits.double(), targets, 0.0)
        sums += torch.stack((loss, correct.double(), torch.full_like(loss, targets.numel())))
    loss_sum, correct_sum, count = sums.tolist()
    return {"loss": loss_sum / count, "accuracy": correct_sum / count}
