"""Scores a split during training: the loss and the metrics of a validation."""

from collections.abc import Callable, Iterable

import torch
from torch import nn

from pipeline.batch import IGNORED
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
    """Return the mean loss and the metrics over a split.

    The only host synchronisation is at the end. `pause()` is called after each batch and may raise.
    """
    totals = torch.zeros((), dtype=torch.float64, device=device)
    names: tuple[str, ...] = ()
    for outputs, batch in predict(model, batches(), precision=precision, device=device):
        pause()
        assert batch.targets is not None
        sums = {"loss": objective.loss(outputs.double(), batch), **objective.sums(outputs, batch)}
        names = tuple(sums)
        totals = totals + torch.stack([*(total.double() for total in sums.values()), (batch.targets != IGNORED).sum().double()])
    *sums_of_split, num_targets = totals.tolist()
    by_name = dict(zip(names, sums_of_split, strict=True))
    return {"loss": by_name["loss"] / num_targets, **objective.averages(by_name, num_targets)}
