"""Computes the loss and the metrics of a split during training."""

from collections.abc import Callable, Iterable

import torch
from torch import nn

from pipeline.batch import num_targets
from pipeline.engine.inference import Padded, predict
from pipeline.engine.objective import Objective
from pipeline.engine.precision import ChosenPrecision


def score(
    model: nn.Module,
    batches: Callable[[], Iterable[Padded]],
    objective: Objective,
    *,
    precision: ChosenPrecision,
    device: torch.device,
    pause: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Return the mean loss and the metrics of `model` over a split, by name.

    `batches()` returns an iterator over the batches of the split. `pause()` is called after each batch. It may raise an exception to end
    the computation early. The host synchronises with the device only once, at the end.
    """
    totals = torch.zeros((), dtype=torch.float64, device=device)
    names: tuple[str, ...] = ()
    for outputs, targets in predict(model, batches(), precision=precision, device=device):
        pause()
        assert targets is not None
        sums = {"loss": objective.loss(outputs.double(), targets), **objective.sums(outputs, targets)}
        names = tuple(sums)
        totals = totals + torch.stack([*(total.double() for total in sums.values()), num_targets(targets).double()])
    *sums_of_split, count = totals.tolist()
    by_name = dict(zip(names, sums_of_split, strict=True))
    return {"loss": by_name["loss"] / count, **objective.averages(by_name, count)}
