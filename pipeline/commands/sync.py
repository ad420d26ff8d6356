"""`python -m pipeline sync`: send to MLflow all events of the journals, the local records of runs, that MLflow has not received yet."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.runtime.environment import Environment
from pipeline.tracking import mirror

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn


def run(follow: str | None) -> int:
    """Send the journals of all runs to MLflow. Return 0 if MLflow then has all their events, else 1.

    If `follow` names the folder of a journal, send only this journal, and go on until the stage that writes it has ended.
    """
    if follow:
        return mirror.follow(Path(follow), Environment.read(), build)
    return 1 if mirror.sync(Environment.read(), build) else 0


def build(path: Path) -> "tuple[nn.Module, NDArray[Any], tuple[str, ...]]":
    """Load a model file. Return what MLflow logs with it: the module, an example batch of inputs and the names of the outputs."""
    from pipeline.engine.model_file import deployable  # late: torch takes seconds to import, and only the model needs it

    return deployable(path)
