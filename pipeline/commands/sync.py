"""Deliver what MLflow has not yet received, of every journal of this checkout."""

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.runtime.environment import Environment
from pipeline.tracking import run as tracking

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import nn


def run() -> int:
    """Returns 1 while anything is left undelivered."""
    left = tracking.sync(Environment.read(), build=build)
    return 1 if left else 0


def build(path: Path) -> "tuple[nn.Module, NDArray[np.uint8], tuple[str, ...]]":
    """Return the model of a file as it is to be logged, an example of its input, and the class names."""
    from pipeline.engine.deploy import deployable  # late: torch takes seconds, and most of a journal needs none

    return deployable(path)
