"""Deliver to MLflow what it has not yet received from the journals of this checkout, or follow the journal of a running stage."""

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.runtime.environment import Environment
from pipeline.tracking import mirror

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import nn


def run(follow: str | None) -> int:
    """Deliver all journals, or one until its stage has ended; return 1 if anything is left undelivered, else 0."""
    if follow:
        return mirror.follow(Path(follow), Environment.read(), build)
    return 1 if mirror.sync(Environment.read(), build) else 0


def build(path: Path) -> "tuple[nn.Module, NDArray[np.uint8], tuple[str, ...]]":
    """Load a model file; return the model to log, an input example (uint8) and the class names."""
    from pipeline.engine.model_file import deployable  # late: torch takes seconds to import, and most of a journal does not need it

    return deployable(path)
