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
    """Yield the pair (outputs, targets) for each batch. The samples that only fill up a batch are left out.

    Outputs are float32. Targets are None if the batch has no targets. The model runs in evaluation mode. Its previous mode is restored when
    the iterator ends or is closed.
    """
    training = model.training
    model.eval()
    try:
        for batch, real in batches:
            with torch.no_grad(), autocast(precision, device):
                outputs = model(batch.inputs)
            targets = None if batch.targets is None else batch.targets[:real]
            del batch  # otherwise this reference would keep the inputs alive until the next batch is loaded
            yield outputs[:real].float(), targets
    finally:
        model.train(training)
