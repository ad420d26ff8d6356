"""`python -m pipeline sync`: send to MLflow all events of the journals, the local records of runs, that MLflow has not received yet."""

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core.environment import Environment
from pipeline.runs.mlflow import mirror

if TYPE_CHECKING:
    from torch import nn

    from pipeline.core.spec import Spec


def run(follow: str | None) -> int:
    """Send journals, the local records of runs, to MLflow: all that are not completely in an MLflow store yet. Return 0 if this succeeds,
    else 1.

    If `follow` is the folder of a journal, send this journal until the stage that writes it has ended and MLflow has everything. Then send
    the journals of earlier runs for a limited time; whether this succeeds does not change the exit code.
    """
    if follow:
        return mirror.follow(Path(follow), Environment.read(), build)
    return 1 if mirror.sync(Environment.read(), build) else 0


def build(path: Path) -> "tuple[nn.Module, Spec]":
    """Load a model file. Return what MLflow logs: the module, and the description of its inputs and outputs."""
    from pipeline.inference import model_file  # late: torch takes seconds to import, and only the model needs it

    module, manifest = model_file.load(path, complete=True)
    return module, manifest.spec
