"""Describes targets that are the height above a plane."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from pipeline.core import spec


class Targets(spec.Targets):
    dtype: ClassVar[type[np.generic]] = np.float32
    form: ClassVar[Literal["numbers"]] = "numbers"
    metrics: ClassVar[Mapping[str, spec.Direction]] = {"loss": "min", "mean_absolute_error": "min"}

    kind: Literal["height"] = "height"

    @property
    def row_shape(self) -> tuple[int, ...]:
        return (1,)

    def num_outputs(self, inputs: spec.Inputs) -> int:  # always one number
        return 1
