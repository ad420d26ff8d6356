"""Deliver one journal to MLflow. The stages start this verb as a separate process."""

from pathlib import Path

from pipeline.commands.sync import build
from pipeline.runtime.environment import Environment
from pipeline.tracking.mirror import mirror


def run(journal: str) -> int:
    return mirror(Path(journal), Environment.read(), build=build)
