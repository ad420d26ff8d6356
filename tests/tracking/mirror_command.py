"""The command of a mirror that knows how to build tiny models; importing this takes no torch."""

import sys
from pathlib import Path

MIRROR = """
import sys
from pathlib import Path
from pipeline.runtime.environment import Environment
from pipeline.tracking.mirror import follow

def build(path):
    from tests.tracking import tiny
    return tiny.build(path)

sys.exit(follow(Path(sys.argv[1]), Environment.read(), build))
"""


def command(folder: Path) -> list[str]:
    """Return the command that replaces `python -m pipeline sync --follow`: the same mirror, for tiny models."""
    return [sys.executable, "-c", MIRROR, str(folder)]
