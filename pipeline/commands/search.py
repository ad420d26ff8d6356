"""`python -m pipeline search FILE`: search for the best hyperparameters and, with `--apply`, write them to params.yaml."""

from pathlib import Path

from pipeline.commands.check import refuse_misfits


def run(file: str, trials: int | None, apply: bool, keep_models: bool, skip: int | None) -> int:
    """Run the remaining trials, and print all trials, the best first.

    `trials` replaces the number in the file. With `apply`, write the parameters of the best trial to params.yaml. With `keep_models`, keep
    the models of all trials, not only that of the best. `skip` is the number of a trial to list as failed. Return 1 if all trials have failed.
    """
    from pipeline.search import runner  # late: Optuna and torch take seconds to import, and `--help` does not need them

    return runner.run(Path(file), num_trials=trials, apply=apply, keep_models=keep_models, skip=skip, validate=refuse_misfits)
