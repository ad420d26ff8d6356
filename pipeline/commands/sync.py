"""`python -m pipeline sync`: deliver to MLflow all journals of this checkout that MLflow lacks, or follow the journal of a running stage."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.runtime.environment import Environment
from pipeline.tracking import mirror

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn


def run(follow: str | None) -> int:
    """Deliver all journals. If `follow` names a folder, deliver only the journal in that folder, until the stage that writes it has ended.

    Return 0 if all events are delivered, else 1.
    """
    if follow:
        return mirror.follow(Path(follow), Environment.read(), build)
    return 1 if mirror.sync(Environment.read(), build) else 0


def build(path: Path) -> "tuple[nn.Module, NDArray[Any], tuple[str, ...]]":
    """Load a model file. Return the module to log, an example batch of its input and the names of its outputs."""
    from pipeline.engine.model_file import deployable  # late: torch takes seconds to import, and only the model needs it

    return deployable(path)
