"""`python -m pipeline sync`: send to MLflow all events of the journals, the local records of runs, that MLflow has not received yet."""

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.runtime.environment import Environment
from pipeline.tracking import mirror

if TYPE_CHECKING:
    from torch import nn

    from pipeline.spec import Spec


def run(follow: str | None) -> int:
    """Send the journals of all runs to MLflow. Return 0 if MLflow then has all their events, else 1.

    If `follow` names the folder of a journal, send only this journal, and go on until the stage that writes it has ended.
    """
    if follow:
        return mirror.follow(Path(follow), Environment.read(), build)
    return 1 if mirror.sync(Environment.read(), build) else 0


def build(path: Path) -> "tuple[nn.Module, Spec]":
    """Load a model file. Return what MLflow logs: the module, and the description of its inputs and outputs."""
    from pipeline.engine import model_file  # late: torch takes seconds to import, and only the model needs it

    module, manifest = model_file.load(path)
    return module, manifest.spec
