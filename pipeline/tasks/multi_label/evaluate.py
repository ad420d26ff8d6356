"""Scores, tables and figures of samples with several labels, on the test split."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from pipeline.core.spec import Spec
from pipeline.evaluate import intervals
from pipeline.evaluate.params import EvaluateSettings
from pipeline.evaluate.reports import metrics
from pipeline.evaluate.reports.metrics import Floats, Integers, SampleScores
from pipeline.evaluate.reports.recorded import Row
from pipeline.inference import scores
from pipeline.inference.metrics import average_precision
from pipeline.tasks.multi_label.targets import DELIMITER, HALF, LabelTargets

if TYPE_CHECKING:
    from torch import Tensor


class Settings(EvaluateSettings):
    name: Literal["multi_label"]
    confidence_level: Annotated[float, Field(gt=0, lt=1)]
    """Confidence level of the intervals of all scores, by the bootstrap."""

    RECOMMENDED: ClassVar = {"confidence_level": 0.95}

    @field_validator("metrics")
    @classmethod
    def refuse_repeated(cls, metrics: tuple[str, ...]) -> tuple[str, ...]:
        if repeated := next((name for name in metrics if name in ("average_precision", "macro_f1")), None):
            raise ValueError(f"{repeated} is a score that this task always has: leave it out")
        return metrics


class Evaluator:
    """Collects the logits and the labels of the samples batch by batch, and computes scores, tables and figures from them."""

    def __init__(self, spec: Spec, settings: Settings) -> None:
        assert isinstance(spec.targets, LabelTargets)
        self.targets, self.labels, self.settings = spec.targets, spec.targets.labels, settings
        self.average_precision = average_precision.Metric(spec.num_outputs)
        self.parts: list[tuple[Floats, Integers]] = []

    def add(self, logits: "Tensor", targets: "Tensor") -> None:
        """Add the logits and the targets (n, labels) of the next samples."""
        self.parts.append((logits.double().cpu().numpy(), targets.cpu().numpy().astype(np.int64)))

    @cached_property
    def outputs(self) -> tuple[Floats, Integers]:
        """Return the logits and the targets (samples, labels) of all samples.

        Raises Refusal if a logit is not finite.
        """
        logits, targets = metrics.joined(self.parts)
        metrics.refuse_damaged(np.isfinite(logits).all(axis=1))
        return logits, targets

    @cached_property
    def losses(self) -> Floats:
        """Return the binary cross-entropy of each label of each sample (samples, labels), in nats."""
        logits, targets = self.outputs
        return np.logaddexp(0, np.where(targets, -logits, logits))

    @cached_property
    def probabilities(self) -> Floats:
        return scores.sigmoid(self.outputs[0])

    @cached_property
    def predicted(self) -> NDArray[np.bool_]:
        """Return True for each label of each sample (samples, labels) that is predicted: its probability is above the threshold."""
        return self.targets.predicted(self.probabilities)

    def scores(self) -> dict[str, Any]:
        """Return the scores for `metrics/evaluate.json`, each with its interval, and those of each label."""
        targets, every = self.outputs[1], np.arange(len(self.predicted))

        def of(samples: Integers) -> dict[str, float]:
            support, named, hits = self.counts(samples)
            return {
                "average_precision": self.average_precision.of(targets[samples], self.probabilities[samples]),
                "macro_f1": scores.macro_f1(support, named, hits),
                "micro_f1": scores.micro_f1(int(hits.sum()), int(named.sum() + support.sum())),
                "exact_match": float((self.predicted[samples] == targets[samples]).all(axis=1).mean()),
            }

        found = {name: value for name, value in of(every).items() if np.isfinite(value)}
        drawn = intervals.of(of, len(every), self.settings.confidence_level) if targets.size <= intervals.MOST_VALUES else {}
        per_label = metrics.score_classes(*self.counts(every), self.labels)
        for number, label in enumerate(self.labels):
            precision = self.average_precision.of(targets[:, [number]], self.probabilities[:, [number]])
            if np.isfinite(precision):
                per_label[label]["average_precision"] = precision
        return {
            "loss": float(self.losses.mean()),
            **found,
            **{f"{name}_interval": drawn[name] for name in found if name in drawn},
            "samples": len(every),
            "per_label": per_label,
        }

    def counts(self, samples: Integers) -> tuple[Integers, Integers, Integers]:
        """Return for each label how many of `samples` have it, how many are predicted to, and how many of these are correct."""
        actual, named = self.outputs[1][samples] > HALF, self.predicted[samples]
        support, predicted, hits = (marks.sum(axis=0) for marks in (actual, named, actual & named))
        return support, predicted, hits

    def sample_scores(self) -> SampleScores:
        """Return the loss of each sample, the mean over the labels; 1 in `correct` if all its labels are right; and its actual and predicted labels."""
        targets = self.outputs[1]
        answers = {"actual": self.names(targets), "predicted": self.names(self.predicted)}
        exact = (self.predicted == targets).all(axis=1).astype(np.int64)
        return SampleScores(self.losses.mean(axis=1), exact, np.ones_like(exact), answers)

    def names(self, marks: NDArray[Any]) -> NDArray[Any]:
        """Return the labels that are marked by 1 or True for each sample (samples, labels), as one text each."""
        return np.array([DELIMITER.join(self.labels[number] for number in np.flatnonzero(row)) for row in marks], dtype=object)

    def write(self, folder: Path, *, history: Sequence[Row], **_: object) -> None:
        """Write figures of the scores of each label, of the labels that are predicted for samples with each label, and of the training history."""
        # imported late: matplotlib takes a second, which would delay an error message
        from pipeline.evaluate.reports.figures import curves, mistakes

        targets = self.outputs[1]
        mistakes.plot_label_scores(folder / "labels.png", self.scores()["per_label"])
        mistakes.plot_label_pairs(folder / "pairs.png", targets.T @ self.predicted, targets.sum(axis=0), self.labels)
        curves.plot_history(folder / "history.png", history, "micro_f1")
