"""Describes targets that are one number per sample."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from pipeline.core import spec


class Targets(spec.Targets):
    dtype: ClassVar[type[np.generic]] = np.float32
    row_shape: ClassVar[tuple[int, ...]] = (1,)
    metrics: ClassVar[Mapping[str, spec.Direction]] = {"loss": "min", "mean_absolute_error": "min"}

    kind: Literal["regression"] = "regression"

    def num_outputs(self, inputs: spec.Inputs) -> int:  # always one number
        return 1
