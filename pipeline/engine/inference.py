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
    """Yield the outputs in float32 of each batch, and its targets if it has any, both without the samples that are padding.

    The batches need no targets. The mode of the model is restored at the end.
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
