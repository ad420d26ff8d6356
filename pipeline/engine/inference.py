"""Forward passes without gradients."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from pipeline.batch import Batch
from pipeline.engine.precision import ChosenPrecision, autocast

Padded = tuple[Batch, int]
"""A batch, and the number of its samples that are not padding."""


def predict(
    model: nn.Module, batches: Iterable[Padded], *, precision: ChosenPrecision, device: torch.device
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield the outputs of each batch in float32, and its targets, or None if the batch has none. Padding is removed from both.

    The model runs in evaluation mode; its previous mode is restored at the end.
    """
    training = model.training
    model.eval()
    try:
        for batch, real in batches:
            with torch.no_grad(), autocast(precision, device):
                outputs = model(*batch.arguments)
            targets = None if batch.targets is None else batch.targets[:real]
            del batch  # the caller must not keep these inputs alive during the next forward pass
            yield outputs[:real].float(), targets
    finally:
        model.train(training)
