"""Confidence intervals of scores by the bootstrap, and the metrics of `evaluate.metrics` on the test split, for classes with such intervals."""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipeline.core.spec import Spec
from pipeline.evaluate.params import EvaluateSettings
from pipeline.inference.measuring import Measured, positive_class

if TYPE_CHECKING:
    from torch import Tensor

RESAMPLES = 200
"""How often the samples are drawn anew. Each time costs as much as the metric itself: 200 times the AUROC of 10,000 samples and 10 classes take 15 s."""
MOST_VALUES = 2**22
"""Outputs, samples times classes, up to which there are intervals: they take at most some minutes."""


class MeasuredWithIntervals(Measured):
    """The metrics of `evaluate.metrics` of one pass over the test split: `add` is called for each batch, in order, then `scores` once."""

    def __init__(self, settings: EvaluateSettings, spec: Spec, *, num_samples: int, batch_size: int) -> None:
        """Raises Refusal for the reasons of `Measured`."""
        super().__init__(settings.metrics, spec, key="evaluate.metrics", num_samples=num_samples, batch_size=batch_size)
        # `evaluate` of a language model has no `confidence_level`, and so no intervals
        self.level = getattr(settings, "confidence_level", None) if num_samples * spec.num_outputs <= MOST_VALUES else None
        self.positive_class = positive_class(self.metrics.values(), spec)
        self.kept: list[tuple[Tensor, Tensor]] = []

    def add(self, outputs: "Tensor", targets: "Tensor") -> None:
        super().add(outputs, targets)
        if self.level is not None and self.metrics:
            self.kept.append((outputs.float().cpu(), targets.cpu()))

    def scores(self) -> dict[str, Any]:
        """Return each metric that the samples determine by its name, and its interval by `NAME_interval`, if the split is not too large for it.

        If one of them is that of the positive one of two classes, `positive_class` is the name of this class.
        One of them may be `macro_f1`, which a classification always has: equal to that score, and named in `evaluate.metrics` for its interval.
        """
        values: dict[str, Any] = dict(self.values())
        named = {} if self.positive_class is None else {"positive_class": self.positive_class}
        if not self.kept or self.level is None:
            return values | named
        import torch  # late: parameters are checked without torch

        outputs, targets = (torch.cat(parts) for parts in zip(*self.kept, strict=True))
        metrics = {name: self.metrics[name] for name in values}

        def of_draw(draw: NDArray[np.int64]) -> dict[str, float]:
            return {name: metric.value(metric.part(outputs[draw], targets[draw]).numpy()) for name, metric in metrics.items()}

        return values | named | {f"{name}_interval": ends for name, ends in of(of_draw, len(targets), self.level).items()}


def of(scores: Callable[[NDArray[np.int64]], Mapping[str, float]], num_samples: int, level: float) -> dict[str, dict[str, float]]:
    """Return `low` and `high` of the percentile interval of each score at the confidence level `level` (Efron, 1979).

    `scores` returns the scores of the samples with the given numbers. RESAMPLES times, as many samples are drawn with replacement, always the same
    ones for an equal `num_samples`. Draws that do not determine a score are left out, and scores that none determines. A single sample has no
    intervals: each draw would be equal to it.
    """
    if num_samples == 1:
        return {}
    generator = np.random.default_rng(0)
    drawn = [scores(generator.integers(num_samples, size=num_samples)) for _ in range(RESAMPLES)]
    ends = ((1 - level) / 2, (1 + level) / 2)
    values = {name: [each[name] for each in drawn if math.isfinite(each[name])] for name in drawn[0]}
    return {name: dict(zip(("low", "high"), np.quantile(found, ends).tolist(), strict=True)) for name, found in values.items() if found}
