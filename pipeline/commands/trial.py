"""`python -m pipeline trial FOLDER`: train with the parameters of a trial of a search, as `search` does, for example to get its model back."""

from pathlib import Path

from pipeline.commands import stage
from pipeline.refusal import Refusal
from pipeline.search.trial import TrialPaths


def run(folder: str) -> None:
    """Train in the folder of the trial. Raises Refusal if it is no such folder."""
    paths = TrialPaths(folder=Path(folder))
    if not paths.params.is_file():
        raise Refusal(f"{folder}: is not the folder of a trial: give one of .pipeline/search/NAME/trials/")
    stage.run("train", paths, ["trial", folder])
