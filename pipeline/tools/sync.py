"""`python -m pipeline sync`: send to MLflow all events of the journals, the local records of runs, that MLflow has not received yet."""

from pathlib import Path

from pipeline.core.environment import Environment
from pipeline.runs.mlflow import mirror


def run(follow: str | None) -> int:
    """Send journals, the local records of runs, to MLflow: all that are not completely in an MLflow store yet. Return 0 if this succeeds,
    else 1.

    If `follow` is the folder of a journal, send this journal until the stage that writes it has ended and MLflow has everything.
    """
    environment = Environment.read()
    return mirror.follow(Path(follow), environment) if follow else int(mirror.sync(environment) > 0)
