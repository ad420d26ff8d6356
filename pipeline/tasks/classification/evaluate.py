"""Scores, tables and figures of a classification on the test split."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from pipeline.core.refusal import Refusal
from pipeline.core.section import Count
from pipeline.core.spec import Spec
from pipeline.core.tokenizer import Tokenizer
from pipeline.evaluate.params import EvaluateSettings
from pipeline.evaluate.reports import metrics, recorded
from pipeline.evaluate.reports.metrics import Predictions, SampleScores
from pipeline.evaluate.reports.recorded import Row
from pipeline.inference import scores
from pipeline.inference.scores import Calibration

if TYPE_CHECKING:
    from torch import Tensor


class Settings(EvaluateSettings):
    name: Literal["classification"]
    top_k: PositiveInt
    """The k of `top_k_accuracy`: a sample counts as correct if its class is among the k most likely. It is left out if k is the number of
    classes."""
    calibration_bins: Count
    """Number of equal-width confidence bins of the reliability curve and the expected calibration error."""
    confidence_level: Annotated[float, Field(gt=0, lt=1)]
    """Confidence level of `accuracy_interval`: over many test splits, at least this share of the intervals contains the true accuracy."""
    mistakes: Annotated[int, Field(ge=0, le=100)]
    """Number of wrongly predicted samples to show in a figure if they are images, or in a table if they are texts, those with the highest
    confidence first; 0 for none."""

    RECOMMENDED: ClassVar = {"top_k": 2, "calibration_bins": 15, "confidence_level": 0.95, "mistakes": 25}

    def refuse_misfit(self, num_outputs: int) -> None:
        """Raise Refusal if `top_k` is larger than the number of classes."""
        if self.top_k > num_outputs:
            raise Refusal(
                f"evaluate.top_k: {self.top_k} is more than the {num_outputs} classes of this dataset: write at most {num_outputs}"
            )


class Evaluator:
    """Collects logits and class numbers batch by batch, and computes scores, tables and figures from them.

    To save memory, it keeps no logits, but five numbers for each sample: the fields of `Predictions`.
    """

    def __init__(self, spec: Spec, settings: Settings) -> None:
        settings.refuse_misfit(spec.num_outputs)
        self.classes, self.settings = spec.targets.output_names, settings
        self.inputs: Any = spec.inputs
        self.parts: list[Predictions] = []

    def add(self, logits: "Tensor", targets: "Tensor") -> None:
        """Add the logits (n, classes) and the class numbers (n,) of the next samples."""
        assert logits.shape[1] == len(self.classes)
        self.parts.append(Predictions.of(logits.cpu().numpy(), targets.cpu().numpy()))

    @cached_property
    def predictions(self) -> Predictions:
        """Return the predictions of all samples. Raises Refusal if a logit is not finite."""
        return Predictions.joined(self.parts)

    def scores(self) -> dict[str, Any]:
        """Return the scores for `metrics/evaluate.json`."""
        return scored(self.predictions, self.classes, self.settings)

    def sample_scores(self) -> SampleScores:
        """Return the loss of each sample, 1 in `correct` if its prediction is correct, and the classes. Raises Refusal as `predictions` does."""
        found, names = self.predictions, np.array(self.classes, dtype=object)
        answers = {"actual": names[found.targets], "predicted": names[found.predicted], "confidence": found.confidence, "rank": found.rank}
        return SampleScores(found.loss, found.correct.astype(np.int64), np.ones_like(found.targets), answers)

    def write(self, folder: Path, *, inputs: NDArray[Any], history: Sequence[Row], **_: object) -> None:
        """Write the confusion matrix and the reliability curve, each as a table and as a figure, the training history, and mistakes.

        The mistakes are the wrong predictions with the highest confidence: a figure if the inputs are images, and a table if they are texts.
        `inputs` are the inputs of the test split; of these, only the shown mistakes are read. `history` has the rows of `history.csv`.
        """
        # imported late: matplotlib takes a second, which would delay an error message
        from pipeline.evaluate.reports.figures import curves, mistakes

        predictions, classes = self.predictions, self.classes
        calibration = Calibration.of(predictions.confidence, predictions.correct, self.settings.calibration_bins)
        targets, predicted = predictions.targets, predictions.predicted
        recorded.write_reliability(folder / "reliability.csv", calibration)
        mistakes.plot_confusion(folder / "confusion.png", targets=targets, predicted=predicted, classes=classes)
        curves.plot_reliability(folder / "reliability.png", calibration)
        curves.plot_history(folder / "history.png", history)
        if self.inputs.augmented == "pixels":
            mistakes.plot_mistakes(
                folder / "mistakes.png", images=inputs, predictions=predictions, classes=classes, most=self.settings.mistakes
            )
        elif self.inputs.augmented == "tokens":
            tokenizer = Tokenizer(self.inputs.tokenizer)
            shown = predictions.most_confident_mistakes(self.settings.mistakes)
            actual, answered = ([classes[number] for number in numbers[shown]] for numbers in (targets, predicted))
            texts = [tokenizer.decode(inputs[number], show_unknown=True) for number in shown]
            rows = zip(shown.tolist(), actual, answered, predictions.confidence[shown].tolist(), texts, strict=True)
            recorded.write(folder / "mistakes.csv", ("sample", "actual", "predicted", "confidence", "text"), rows)
        recorded.write_confusion(folder / "confusion.csv", targets=targets, predicted=predicted, classes=classes)


def scored(predictions: Predictions, classes: tuple[str, ...], settings: Settings) -> dict[str, Any]:
    """Return the scores of `predictions` by name. All scores are finite. There is no `top_k_accuracy` if it counts every sample as correct.

    `classes` are the class names, and `settings` the section `evaluate` of params.yaml.
    """
    correct = predictions.correct
    counts = metrics.count_classes(predictions.targets, predictions.predicted, len(classes))
    top = {"top_k_accuracy": float((predictions.rank < settings.top_k).mean())} if settings.top_k < len(classes) else {}
    return {
        "loss": float(predictions.loss.mean()),
        "accuracy": float(correct.mean()),
        **top,
        "macro_f1": scores.macro_f1(*counts),
        "expected_calibration_error": Calibration.of(predictions.confidence, correct, settings.calibration_bins).error,
        "accuracy_interval": metrics.accuracy_interval(correct, settings.confidence_level),
        "samples": len(correct),
        "per_class": metrics.score_classes(*counts, classes),
    }
