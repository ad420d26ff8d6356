"""Compares the outputs of an exported program with those of the model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.engine.model import Model
from pipeline.progress import progress

TOLERANCE = 1e-4
"""Largest allowed difference of an output."""
BATCH_SIZE = 32

Program = Callable[[NDArray[np.generic]], NDArray[np.float32]]


@dataclass
class Difference:
    """Describes how far the outputs of an exported program are from those of the model.

    `largest` is the largest absolute difference of an output. `num_other_classes` counts the outputs whose most probable class differs.
    """

    largest: float = 0.0
    num_outputs: int = 0
    num_other_classes: int = 0

    @property
    def within_tolerance(self) -> bool:
        """Return True if no output differs by more than TOLERANCE. Return False if any difference is NaN."""
        return self.largest <= TOLERANCE

    def __str__(self) -> str:
        same = self.num_outputs - self.num_other_classes
        return f"largest difference {self.largest:.2g} (allowed: {TOLERANCE:.0e}), the same class for {same} of {self.num_outputs} outputs"

    def add(self, expected: NDArray[np.float32], found: NDArray[np.float32]) -> None:
        """Compare two batches of outputs (..., classes), and include them in this difference.

        `expected` has the outputs of the model, and `found` those of the program. Raises ValueError if their shapes differ.
        """
        if expected.shape != found.shape:
            raise ValueError(f"outputs have shape {found.shape} instead of {expected.shape}")
        self.largest = float(np.maximum(self.largest, np.abs(expected - found).max()))  # `maximum` keeps NaN
        classes, others = expected.argmax(-1), found.argmax(-1)
        self.num_outputs += classes.size
        self.num_other_classes += int((classes != others).sum())


def compare(model: Model, program: Program, rows: NDArray[np.generic], *, variable_length: bool) -> Difference:
    """Run the model and the exported program on all `rows`, and return how much their outputs differ.

    `rows` has samples in the form in which `prepare` stores them. If `variable_length` is True, shortened samples are compared too. Raises
    ValueError if the shapes of the outputs differ. Exceptions of the program are passed on.
    """
    difference = Difference()
    with progress("export", len(rows), "samples") as advance:
        for batch in advance.each(batches(rows, variable_length=variable_length), len):
            with torch.inference_mode():
                expected = model(torch.from_numpy(batch)).numpy()
            difference.add(expected, program(batch))
    return difference


def batches(rows: NDArray[np.generic], *, variable_length: bool) -> Iterator[NDArray[np.generic]]:
    """Yield all `rows` in batches of different sizes, because an exported program must work for any batch size.

    If `variable_length` is True, first yield the first two rows, cut to half their length, because the program must then work for any
    length.
    """
    if variable_length:
        yield np.ascontiguousarray(rows[:2, : (rows.shape[1] + 1) // 2])  # compiled programs assume contiguous inputs
    yield rows[:1]
    for first in range(1, len(rows), BATCH_SIZE):
        yield rows[first : first + BATCH_SIZE]
