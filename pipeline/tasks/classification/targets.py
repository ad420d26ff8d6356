"""Describes targets that are one class per sample."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, FailFast, Field

from pipeline.core import spec, untrusted
from pipeline.core.cells import as_number
from pipeline.core.refusal import Refusal

MOST_NAMED = 5


class ClassTargets(spec.Targets):
    """Describes targets that are class numbers. They are stored as int64 and counted from 0; `classes` has the name of each class."""

    dtype: ClassVar[type[np.generic]] = np.int64
    form: ClassVar[Literal["class"]] = "class"
    loss_keys: ClassVar[frozenset[str]] = frozenset({"class_weights", "label_smoothing"})
    predictions: ClassVar[str] = "the most probable classes with their probabilities"
    averaged: ClassVar[bool] = True
    mixable: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, spec.Direction]] = {"loss": "min", "accuracy": "max", "macro_f1": "max"}
    only_validated: ClassVar[frozenset[str]] = frozenset({"macro_f1"})

    kind: Literal["classification"] = "classification"
    classes: Annotated[tuple[str, ...], FailFast(), Field(min_length=2), AfterValidator(spec.distinct)]
    positive: str | None = Field(default=None, exclude_if=lambda name: name is None)
    """The positive one of two classes; None for the second."""

    @classmethod
    def example(cls) -> Self:
        """Return the description of two classes."""
        return cls(classes=("first", "second"))

    @classmethod
    def named(cls, names: tuple[str, ...], place: str) -> Self:
        if len(names) < 2:
            raise Refusal(f"source.root: {place} has only one class ({', '.join(names)}): add samples of a second class")
        return cls(classes=names)

    def with_positive(self, name: str | int | None) -> Self:
        if name is None:
            return self
        # YAML reads the class +1 as the number 1
        found = next((each for each in self.classes if each == str(name) or (isinstance(name, int) and as_number(each) == name)), None)
        if len(self.classes) != 2 or found is None:
            names = untrusted.shown(", ".join(self.classes[:MOST_NAMED]), 60)
            remedy = "write one of them" if len(self.classes) == 2 else "write null"
            raise Refusal(
                f"source.positive_class: {untrusted.shown(name, 60)} is not one of two classes, the classes are {names}: {remedy}"
            )
        return self.model_copy(update={"positive": found})

    @property
    def positive_number(self) -> int:
        return 1 if self.positive is None else self.classes.index(self.positive)

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.classes

    def refuse_invalid(self, targets: NDArray[np.int64], place: str) -> None:
        """Raise Refusal if a class number is negative, or not less than the number of classes. `place` names the data in the message."""
        if len(targets) and not 0 <= targets.min() <= targets.max() < len(self.classes):
            raise Refusal(
                f"{place} has targets from {targets.min()} to {targets.max()}, but the numbers of its {len(self.classes)} classes are 0 to "
                f"{len(self.classes) - 1}: correct the source, and run `dvc repro -f prepare`"
            )

    def refuse_unlearnable(self, targets: NDArray[np.int64], place: str) -> None:
        """Raise Refusal if a class has no sample, or if the class names are too long in total for `spec.json` and the header of the model
        file.

        `place` names the dataset in the message.
        """
        spec.refuse_long(self.classes, "classes", place)
        counts = np.bincount(targets, minlength=len(self.classes)).tolist()
        empty = [name for name, count in zip(self.classes, counts, strict=True) if count == 0]
        if empty:
            raise Refusal(f"source.root: {place} has no samples of {', '.join(empty[:MOST_NAMED])}: add some, or remove the class")

    def baseline_scores(self, train: NDArray[np.int64], test: NDArray[np.int64]) -> dict[str, float]:
        """Return the accuracy on `test` of always guessing the most frequent class of `train`; of several such classes, the first."""
        return {"majority_class_accuracy": float((test == np.bincount(train).argmax()).mean())}

    def linear_scores(self, fit: spec.Fit, train: NDArray[np.int64], test: NDArray[np.int64]) -> dict[str, float]:
        """Return the accuracy of the class whose 1 among zeros is fitted best."""
        fitted = fit(np.eye(len(self.classes))[train])
        return {"linear_accuracy": float((fitted.argmax(axis=1) == test).mean())}

    def strata(self, targets: NDArray[Any]) -> NDArray[np.int64]:
        """Return the class number of each sample, so that each class is a stratum: a random split takes the same share of each class."""
        return targets

    def sizes(self, targets: NDArray[Any]) -> dict[str, int]:
        return dict(
            zip(map(self.stratum_name, range(len(self.classes))), np.bincount(targets, minlength=len(self.classes)).tolist(), strict=True)
        )

    def stratum_name(self, number: int) -> str:
        return f"class {self.classes[number]}"


Targets = ClassTargets
