"""Finds the largest coordinate of train."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pipeline.inputs.points.description import Inputs


class Statistics:
    dtype: ClassVar[type[np.generic]] = np.float32

    def __init__(self, length: int) -> None:
        self.row_shape = (length,)
        self.largest = 0.0

    def summarize(self, points: NDArray[Any]) -> float:
        return float(np.abs(points).max())

    def add(self, largest: float) -> None:
        self.largest = max(self.largest, largest)

    def inputs(self) -> Inputs:
        return Inputs(length=self.row_shape[0], largest=self.largest)
