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
) -> Iterator[tuple[Tensor, Batch]]:
    """Yield the outputs in float32 of each batch, and the batch, both without the samples that are padding.

    The batches need no targets. The mode of the model is restored at the end.
    """
    training = model.training
    model.eval()
    try:
        for batch, real in batches:
            with torch.no_grad(), autocast(precision, device):
                outputs = model(*batch.arguments)
            yield outputs[:real].float(), Batch(*(None if tensor is None else tensor[:real] for tensor in batch))  # type: ignore[arg-type]  # inputs are never None
    finally:
        model.train(training)
