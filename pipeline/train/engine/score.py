"""Computes the loss and the metrics of a split during training."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from pipeline.inference.batch import num_targets
from pipeline.inference.networks import Padded, predict
from pipeline.inference.precision import ChosenPrecision
from pipeline.train.engine.objective import Objective
from pipeline.train.group.processes import ALONE, Group

MOST_VALUES = 2**24
"""Outputs that are turned into float64 at once: 128 MiB. A language model has an output for each token of the vocabulary and each position."""


def score(
    model: nn.Module,
    batches: Callable[[], Iterable[Padded]],
    objective: Objective,
    *,
    precision: ChosenPrecision,
    device: torch.device,
    group: Group = ALONE,
    pause: Callable[[], object] = lambda: None,
) -> dict[str, float]:
    """Return the mean loss and the metrics of `model` over a split, by name.

    `batches()` returns an iterator over the batches of the split, or of every n-th batch if `group` has n processes. `pause()` is called
    after each batch, equally often in all processes. It may raise an exception to end the computation early. The host synchronises with the
    device only at the end. The result is the same for every number of processes. Counts are whole numbers, so their sums are the same for
    every batch size, too.
    """
    rows: list[Tensor] = []
    names: tuple[str, ...] = ()
    counts: Tensor | None = None
    for outputs, targets in predict(model, batches(), precision=precision, device=device):
        pause()
        assert targets is not None
        sums = {"loss": exact_loss(objective, outputs, targets), **objective.sums(outputs, targets)}
        names = tuple(sums)
        if (counted := objective.counts(outputs, targets)) is not None:
            counts = counted if counts is None else counts + counted
        rows.append(torch.stack([*(total.double() for total in sums.values()), num_targets(targets).double()]))
    totals = sum(group.in_turn(torch.stack(rows)), torch.zeros((), dtype=torch.float64, device=device))
    assert isinstance(totals, Tensor)
    *sums_of_split, count = totals.tolist()
    by_name = dict(zip(names, sums_of_split, strict=True))
    metrics = {"loss": by_name["loss"] / count, **objective.averages(by_name, count)}
    if counts is None:
        return metrics
    return metrics | objective.count_metrics(group.gathered(counts[None]).sum(dim=0).cpu().numpy())


def exact_loss(objective: Objective, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the summed loss, computed in float64 for some samples at a time: at most MOST_VALUES outputs, or one sample."""
    samples = max(1, MOST_VALUES // max(1, outputs[:1].numel()))
    parts = zip(torch.split(outputs, samples), torch.split(targets, samples), strict=True)
    return torch.stack([objective.loss(part.double(), of_part) for part, of_part in parts]).sum()
