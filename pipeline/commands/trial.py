"""`python -m pipeline trial FOLDER`: train with the parameters of a trial of a search, as `search` does, for example to get its model back."""

from pathlib import Path

from pipeline.commands import stage
from pipeline.refusal import Refusal
from pipeline.search.trial import TrialPaths


def run(folder: str) -> int:
    """Train in `folder`, the folder of a trial, and return the exit code. Raises Refusal if it is not the folder of a trial."""
    paths = TrialPaths(folder=Path(folder))
    if not paths.params.is_file():
        raise Refusal(f"{folder}: is not the folder of a trial: give one of .pipeline/search/NAME/trials/")
    return stage.run("train", paths, ["trial", folder])
