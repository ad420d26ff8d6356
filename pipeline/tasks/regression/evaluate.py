"""Scores, tables and figures of a regression on the test split."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pipeline.core.spec import Spec
from pipeline.evaluate import intervals
from pipeline.evaluate.params import EvaluateSettings
from pipeline.evaluate.reports import metrics
from pipeline.evaluate.reports.metrics import SampleScores
from pipeline.evaluate.reports.recorded import Row
from pipeline.inference import scores
from pipeline.tasks.regression.targets import Floats, NumberTargets

if TYPE_CHECKING:
    from torch import Tensor


class Settings(EvaluateSettings):
    name: Literal["regression"]
    confidence_level: Annotated[float, Field(gt=0, lt=1)]
    """Confidence level of `rmse_interval`, `mae_interval` and `r2_interval`, by the bootstrap."""

    RECOMMENDED: ClassVar = {"confidence_level": 0.95}


class Evaluator:
    """Collects the predicted and the actual numbers batch by batch, and computes scores, tables and figures from them."""

    def __init__(self, spec: Spec, settings: Settings) -> None:
        assert isinstance(spec.targets, NumberTargets)
        self.targets, self.settings = spec.targets, settings
        self.parts: list[tuple[Floats, Floats]] = []

    def add(self, outputs: "Tensor", targets: "Tensor") -> None:
        """Add the outputs (n, columns), standardised numbers, and the targets (n, columns) in their own units."""
        self.parts.append((outputs.double().cpu().numpy(), targets.cpu().numpy()))

    @cached_property
    def numbers(self) -> tuple[Floats, Floats]:
        """Return the outputs and the targets (samples, columns) of all samples, both in the units of the targets.

        Raises Refusal if an output is not finite.
        """
        import torch  # late: parameters are checked without torch

        from pipeline.inference.networks import Postprocessing

        outputs, targets = metrics.joined(self.parts)
        outputs = Postprocessing(self.targets)(torch.from_numpy(outputs)).numpy()  # the same layer as in predictions
        metrics.refuse_damaged(np.isfinite(outputs).all(axis=1))
        return outputs, targets

    @cached_property
    def standardized(self) -> tuple[Floats, Floats]:
        """Return the outputs and the targets (samples, columns) of all samples, both standardised. Raises Refusal as `numbers` does."""
        outputs, targets = map(self.targets.standardized, self.numbers)
        return outputs, targets

    def scores(self) -> dict[str, Any]:
        """Return the scores for `metrics/evaluate.json`: the mean squared error of the standardised numbers as `loss`, and RMSE, MAE and R2 in the
        units of the targets, with their intervals. Of several columns, which may have different units, it has the mean R2, and `per_column` has all.
        """
        outputs, targets = self.standardized
        errors = outputs - targets
        sums = np.stack([np.square(errors), np.abs(errors), targets, np.square(targets)])  # the fields of NumberSums (4, samples, columns)
        every = np.arange(len(errors))

        def of(samples: NDArray[np.int64], columns: slice) -> dict[str, float]:
            totals = sums[:, samples, columns].sum(axis=1).T
            return scores.of_numbers([scores.NumberSums(*column) for column in totals.tolist()], len(samples), self.targets.std[columns])

        names = self.targets.columns
        found = {name: score for name, score in of(every, slice(None)).items() if len(names) == 1 or name == "r2"}
        drawn = intervals.of(lambda samples: of(samples, slice(None)), len(every), self.settings.confidence_level)
        per_column = {name: of(every, slice(number, number + 1)) for number, name in enumerate(names)} if len(names) > 1 else {}
        return {
            "loss": self.mean_loss(),
            **found,
            **{f"{name}_interval": drawn[name] for name in found if name in drawn},
            "samples": len(errors),
            **({"per_column": per_column} if per_column else {}),
        }

    def mean_loss(self) -> float:
        """Return the mean squared error of the standardised numbers, the loss of a validation."""
        outputs, targets = self.standardized
        return float(np.square(outputs - targets).mean())

    def sample_scores(self) -> SampleScores:
        """Return the squared error of each sample with its numbers: in the squared unit of one column; of several, which may have different units, the
        sum of the squared errors, each divided by the variance of the column in the test split. So models of other train splits can be compared.
        No sample is right or wrong.
        """
        outputs, targets = self.numbers
        several = outputs.shape[1] > 1
        errors = np.square(outputs - targets) / (np.where(np.ptp(targets, axis=0) > 0, targets.var(axis=0), 1) if several else 1)
        of = [f" {name}" for name in self.targets.columns] if several else [""]
        pairs = zip(of, *(numbers.T for numbers in reversed(self.numbers)), strict=True)
        answers = {f"{kind}{name}": column for name, *both in pairs for kind, column in zip(("actual", "predicted"), both, strict=True)}
        return SampleScores(errors.sum(axis=1), None, np.full(len(outputs), outputs.shape[1]), answers)

    def write(self, folder: Path, *, history: Sequence[Row], **_: object) -> None:
        """Write a figure of the predicted beside the actual numbers, and one of the training history."""
        # imported late: matplotlib takes a second, which would delay an error message
        from pipeline.evaluate.reports.figures import curves

        predicted, actual = self.numbers
        curves.plot_errors(folder / "predicted.png", actual, predicted, self.targets.columns)
        curves.plot_history(folder / "history.png", history, "r2" if len(self.targets.columns) > 1 else "rmse", self.targets.loss_unit)
