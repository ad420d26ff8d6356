"""The command of a mirror that knows how to build tiny models; importing this takes no torch."""

import sys
from pathlib import Path

MIRROR = """
import sys
from pathlib import Path
from pipeline.core.environment import Environment
from pipeline.runs.mlflow import mirror

def build(path):
    from tests.runs import tiny
    return tiny.build(path)

mirror.START_AFTER_S = 0.0
sys.exit(mirror.follow(Path(sys.argv[1]), Environment.read(), build))
"""


def command(folder: Path) -> list[str]:
    """Return the command that replaces `python -m pipeline sync --follow`: the same mirror, for tiny models."""
    return [sys.executable, "-c", MIRROR, str(folder)]
