"""`search FILE`: search for the best hyperparameters. `trial FOLDER`: train with the parameters of one trial, as `search` does."""

from pathlib import Path

from pipeline.core import stage
from pipeline.core.environment import Paths
from pipeline.core.refusal import Refusal
from pipeline.tools.check.command import refuse_misfits


def run(file: str, trials: int | None, apply: bool, keep_models: bool, skip: int | None) -> int:
    """Run the remaining trials, and print all trials, the best first.

    `trials` replaces the number in the file. With `apply`, write the parameters of the best trial to params.yaml. With `keep_models`, keep
    the models of all trials, not only that of the best. `skip` is the number of a trial to list as failed. Return 1 if all trials have failed.
    """
    from pipeline.tools.search import runner  # late: Optuna and torch take seconds to import, and `--help` does not need them

    return runner.run(Path(file), num_trials=trials, apply=apply, keep_models=keep_models, skip=skip, validate=refuse_misfits)


def run_trial(folder: str) -> int:
    """Train in `folder`, the folder of a trial, and return the exit code. Raises Refusal if it is not the folder of a trial."""
    paths = Paths(trial=Path(folder))
    if not paths.params.is_file():
        raise Refusal(f"{folder}: is not the folder of a trial: give one of .pipeline/search/NAME/trials/")
    return stage.run("train", paths, ["trial", folder])
