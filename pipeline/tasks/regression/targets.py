"""Describes targets that are one or several numbers per sample."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pipeline.core import spec, untrusted
from pipeline.core.cells import LARGEST, is_constant
from pipeline.core.refusal import Refusal

Floats = NDArray[np.float64]


class NumberTargets(spec.Targets):
    """Describes targets that are numbers, one for each of `columns`. They are stored in their own units, as float64.

    A model learns standardised numbers: those minus `mean`, divided by `std`, the mean and the standard deviation of each column in the train
    split. Both are empty until `fitted` has computed them.
    """

    dtype: ClassVar[type[np.generic]] = np.float64
    form: ClassVar[Literal["numbers"]] = "numbers"
    hub_task: ClassVar[str] = "{inputs}-regression"
    loss_unit: ClassVar[str] = "share of variance"
    prediction_unit: ClassVar[str] = "standard deviations of the targets"
    metrics: ClassVar[Mapping[str, spec.Direction]] = {"loss": "min", "rmse": "min", "mae": "min", "r2": "max"}

    kind: Literal["regression"] = "regression"
    columns: Annotated[tuple[str, ...], Field(min_length=1)]
    mean: tuple[float, ...] = ()
    std: tuple[Annotated[float, Field(gt=0)], ...] = ()

    @classmethod
    def example(cls) -> Self:
        """Return the description of one column of numbers."""
        return cls(columns=("number",), mean=(0.0,), std=(1.0,))

    @property
    def recommended(self) -> dict[str, Any]:
        metric = "r2" if self.columns[1:] else "rmse"  # of columns with different units, no mean of errors means anything
        return {"loss": "mse", "evaluate": self.kind, "train.metric": f"valid/{metric}"}

    @classmethod
    def named(cls, names: tuple[str, ...], place: str) -> Self:  # noqa: ARG003  # one column is enough
        return cls(columns=names)

    @property
    def constants(self) -> Mapping[str, Sequence[float]]:
        return {"mean": self.mean, "scale": self.std}

    def as_predictions(self, outputs: "spec.Tensor", constants: Mapping[str, "spec.Tensor"]) -> "spec.Tensor":
        """Return the numbers (n, columns) in the units of the targets, in float64. The outputs (n, columns) are standardised numbers.

        Float32 has steps of 128 at 1.7e9, the seconds since 1970, and ends at 3.4e38.
        """
        return outputs.double() * constants["scale"] + constants["mean"]

    @property
    def row_shape(self) -> tuple[int, ...]:
        return (len(self.columns),)

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.columns

    def refuse_invalid(self, targets: Floats, place: str) -> None:
        """Raise Refusal if a target is not finite, or larger than LARGEST. `place` names the data in the message."""
        if not np.isfinite(targets).all():
            raise Refusal(f"{place} has targets that are not finite: correct the source, and run `dvc repro -f prepare`")
        for name, largest in zip(self.columns, np.abs(targets).max(axis=0, initial=0).tolist(), strict=True):
            if largest > LARGEST:
                column = untrusted.shown(name, 60)
                raise Refusal(
                    f"{place} has numbers up to {largest:.3g} in the column {column}, more than {LARGEST:g}: write it in another unit"
                )

    def refuse_unlearnable(self, targets: Floats, place: str) -> None:
        """Raise Refusal if a column has the same number in all train samples, apart from rounding, or if float64 cannot hold the squares of their
        differences. `place` names the dataset in the message.
        """
        for name, numbers in zip(self.columns, targets.T, strict=True):
            column, spread = untrusted.shown(name, 60), float(np.ptp(numbers))
            if spread and spread < 1 / LARGEST:
                raise Refusal(
                    f"source.root: {place}: the numbers in the column {column} differ by {spread:.3g} at most, which is too little (less than "
                    f"{1 / LARGEST:g}): write it in another unit"
                )
            if is_constant(numbers):
                raise Refusal(
                    f"source.root: {place}: all train samples have the same number in the column {column}, apart from rounding: choose another column"
                )

    def fitted(self, targets: Floats) -> Self:
        mean, std = targets.mean(axis=0), targets.std(axis=0)
        return self.model_copy(update={"mean": tuple(mean.tolist()), "std": tuple(std.tolist())})

    def baseline_scores(self, train: Floats, test: Floats) -> dict[str, float]:
        """Return the RMSE on `test` of always guessing the mean of `train`, if there is one column. Several may have different units."""
        return {} if len(self.columns) > 1 else {"mean_guess_rmse": float(np.sqrt(np.square(test - train.mean(axis=0)).mean()))}

    def linear_scores(self, fit: spec.Fit, train: Floats, test: Floats) -> dict[str, float]:
        """Return the RMSE. Of several columns, which may have different units, return the mean of their R2."""
        squared = np.square(test - fit(train)).mean(axis=0)
        if len(self.columns) == 1:
            return {"linear_rmse": float(np.sqrt(squared[0]))}
        spread = test.var(axis=0)
        return {"linear_r2": float((1 - squared / spread).mean())} if spread.all() else {}

    def standardized(self, targets: Floats) -> Floats:
        """Return `targets` (n, columns) in standard deviations from the mean: what a training compares the outputs of the network with."""
        numbers: Floats = (targets - np.array(self.mean)) / np.array(self.std)
        return numbers


Targets = NumberTargets
