"""Describes targets that say, for each of several labels, whether a sample has it."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, FailFast, Field

from pipeline.core import spec
from pipeline.core.refusal import Refusal, counted, listed
from pipeline.core.untrusted import shown

Labels = NDArray[np.uint8]
Probabilities = NDArray[np.floating]
HALF, DELIMITER = 0.5, ";"
"""The delimiter separates labels in the tables that are written."""
MOST_NAMED = 5


class LabelTargets(spec.Targets):
    """Describes targets with a 1 for each of `labels` that a sample has, and a 0 for each other one. They are stored as uint8. A sample may have none.

    In a model file, `thresholds` has the probability of each label above which it is predicted. In prepared data it is empty.
    """

    dtype: ClassVar[type[np.generic]] = np.uint8
    form: ClassVar[Literal["labels"]] = "labels"
    predictions: ClassVar[str] = "the most probable labels with their probabilities"
    mixable: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, spec.Direction]] = {
        "loss": "min",
        "average_precision": "max",
        "macro_f1": "max",
        "micro_f1": "max",
        "exact_match": "max",
    }
    only_validated: ClassVar[frozenset[str]] = frozenset({"average_precision", "macro_f1"})
    prediction_unit: ClassVar[str] = "probability"

    kind: Literal["multi_label"] = "multi_label"
    labels: Annotated[tuple[str, ...], FailFast(), Field(min_length=2), AfterValidator(spec.distinct)]
    thresholds: tuple[Annotated[float, Field(ge=0, lt=1)], ...] = Field(default=(), exclude_if=lambda thresholds: not thresholds)

    @classmethod
    def example(cls) -> Self:
        """Return the description of two labels."""
        return cls(labels=("first", "second"))

    @property
    def recommended(self) -> dict[str, Any]:
        return {"loss": "binary_cross_entropy", "evaluate": self.kind, "loss.threshold": "tuned", "train.metric": "valid/average_precision"}

    @classmethod
    def named(cls, names: tuple[str, ...], place: str) -> Self:
        if len(names) < 2:
            raise Refusal(
                f"source.root: {place}: its samples have {counted(len(names), 'label')} ({', '.join(map(shown, names))}), but this "
                "task needs two at least: write `task: classification` if each sample has one class, or the source.label_delimiter"
            )
        return cls(labels=names)

    def predicted(self, probabilities: Probabilities) -> NDArray[np.bool_]:
        """Return True for each label of each sample (samples, labels) that is predicted. `probabilities` (samples, labels) are those of a model."""
        return probabilities > np.array(self.thresholds or HALF)

    def as_predictions(self, outputs: "spec.Tensor", constants: Mapping[str, "spec.Tensor"]) -> "spec.Tensor":  # noqa: ARG002  # other tasks need them
        """Return the probability of each label (n, labels), in float32. The outputs (n, labels) are logits."""
        return outputs.float().sigmoid()

    @property
    def row_shape(self) -> tuple[int, ...]:
        return (len(self.labels),)

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.labels

    def refuse_invalid(self, targets: Labels, place: str) -> None:
        """Raise Refusal if a target is neither 0 nor 1. `place` names the data in the message."""
        if targets.max(initial=0) > 1:
            raise Refusal(f"{place} has the target {targets.max()}, not 0 or 1: correct the source, and run `dvc repro -f prepare`")

    def refuse_unlearnable(self, targets: Labels, place: str) -> None:
        """Raise Refusal if all samples have a label, or none, or if the names of the labels are too long in total.

        `place` names the dataset in the message.
        """
        spec.refuse_long(self.labels, "labels", place)
        counts = targets.sum(axis=0, dtype=np.int64)
        for constant, what, remedy in ((counts == 0, "no sample", "add some"), (counts == len(targets), "only samples", "add others")):
            if constant.any():
                names = [shown(self.labels[number], 60) for number in np.flatnonzero(constant)]
                raise Refusal(f"source.root: {place} has {what} with {listed(names, MOST_NAMED)}: {remedy}, or remove the label")

    def baseline_scores(self, train: Labels, test: Labels) -> dict[str, float]:
        """Return scores on `test` of always answering the labels that more than half of the samples of `train` have, and the average precision
        of an order of the samples at random. This is the share of the samples with the label, on average over the labels that some samples of `test`
        have, but not all.
        """
        guess = train.mean(axis=0) > HALF
        hits, named = int(test[:, guess].sum()), int(test.sum()) + int(guess.sum()) * len(test)
        shares = test.mean(axis=0)
        shares = shares[(shares > 0) & (shares < 1)]
        return {
            "majority_labels_micro_f1": 2 * hits / max(named, 1),
            "majority_labels_exact_match": float((test == guess).all(axis=1).mean()),
            **({"random_average_precision": float(shares.mean())} if shares.size else {}),
        }

    def strata(self, targets: Labels) -> NDArray[np.int64]:
        """Return the number of the rarest label of each sample, or that after the last label if it has none: so a split at random takes the same
        share of the rare labels, and leaves the last sample of each in train.
        """
        counts = np.where(targets, targets.sum(axis=0, dtype=np.int64), len(targets) + 1)
        return np.where(targets.any(axis=1), counts.argmin(axis=1), len(self.labels))

    def sizes(self, targets: Labels) -> dict[str, int]:
        return dict(zip(map(self.stratum_name, range(len(self.labels))), targets.sum(axis=0, dtype=np.int64).tolist(), strict=True))

    def stratum_name(self, number: int) -> str:
        return f"label {self.labels[number]}" if number < len(self.labels) else "the samples without labels"


Targets = LabelTargets
