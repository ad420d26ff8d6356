"""Measures the metrics of `evaluate.metrics` on the test split, and for classes their confidence intervals, by the bootstrap."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.core.spec import Spec
from pipeline.evaluate.params import EvaluateSettings
from pipeline.inference.measuring import Measured, Metric

RESAMPLES = 200
"""How often the samples are drawn anew. Each time costs as much as the metric itself: 200 times the AUROC of 10,000 samples and 10 classes take 15 s."""
MOST_VALUES = 2**22
"""Outputs, samples times classes, up to which there are intervals: they take at most some minutes."""


class MeasuredWithIntervals:
    """The metrics of `evaluate.metrics` of one pass over the test split: `add` is called for each batch, in order, then `scores` once."""

    def __init__(self, settings: EvaluateSettings, spec: Spec, *, num_samples: int, batch_size: int) -> None:
        """Raises Refusal for the reasons of `Measured`."""
        self.measured = Measured(settings.metrics, spec, key="evaluate.metrics", num_samples=num_samples, batch_size=batch_size)
        self.level = getattr(settings, "confidence_level", None)
        self.has_intervals = bool(settings.metrics) and self.level is not None and num_samples * spec.num_outputs <= MOST_VALUES
        self.kept: list[tuple[Tensor, Tensor]] = []

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        self.measured.add(outputs, targets)
        if self.has_intervals:
            self.kept.append((outputs.float().cpu(), targets.cpu()))

    def scores(self) -> dict[str, Any]:
        """Return each metric that the samples determine by its name, and its interval by `NAME_interval`, if the split is not too large for it."""
        values = self.measured.values()
        if not self.kept or self.level is None:
            return dict(values)
        outputs, targets = (torch.cat(parts) for parts in zip(*self.kept, strict=True))
        return values | {f"{name}_interval": interval(self.measured.metrics[name], outputs, targets, self.level) for name in values}


def interval(metric: Metric, outputs: Tensor, targets: Tensor, level: float) -> dict[str, float]:
    """Return `low` and `high` of the percentile interval at the confidence level `level` (Efron, 1979).

    The n samples are drawn with replacement RESAMPLES times, always the same ones for equal n. Draws that do not determine the metric are left out.
    """
    generator = np.random.default_rng(0)
    draws = (torch.from_numpy(generator.integers(len(targets), size=len(targets))) for _ in range(RESAMPLES))
    values = [metric.value(metric.part(outputs[draw], targets[draw]).numpy()) for draw in draws]
    low, high = np.quantile(list(filter(math.isfinite, values)), [(1 - level) / 2, (1 + level) / 2])
    return {"low": float(low), "high": float(high)}
