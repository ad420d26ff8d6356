"""Describes points: some float32 numbers per sample."""

from typing import ClassVar, Literal

import numpy as np

from pipeline.core import spec


class Inputs(spec.Inputs):
    """Describes points of `length` coordinates; `largest` is the largest absolute coordinate of train."""

    dtype: ClassVar[type[np.generic]] = np.float32

    kind: Literal["points"] = "points"
    length: int
    largest: float

    @property
    def row_shape(self) -> tuple[int, ...]:
        return (self.length,)
