"""The study of a search, the ranked table of its trials, and the means of those that repeat a training.

Optuna keeps the trials in SQLite. What it proposes depends on the seed, the number of the trial and the finished trials, and whether it prunes
on the values of a trial and the complete ones. So a search that was killed and repeated proposes and prunes like a search that was never killed.
"""

from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pipeline.core import files
from pipeline.core.identity import differences
from pipeline.core.raw_dataset import TEST, VALID
from pipeline.core.refusal import Refusal, counted, listed, rounded
from pipeline.core.seeding import derive
from pipeline.runs.run_description import short, short_keys
from pipeline.runs.table import show
from pipeline.tools.search.settings import FOLDS, REPEATED, Search, Value, distribution
from pipeline.tools.search.trial import TrialFolder

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

FILE = "study.db"
IDENTITY = "begun"
"""The attribute of the study in the database that has everything that must not change during the search."""
MOST_SHOWN = 5
LEVEL = 0.95
OUTCOMES = {"COMPLETE": "complete", "PRUNED": "pruned", "RUNNING": "unfinished", "FAIL": "failed"}
"""The states of trials in the order of the table, and their words in it."""
State = Literal["COMPLETE", "PRUNED", "FAIL"]


class Study:
    """An open study. Use it only in the process that holds the lock of the search.

    A finished trial has the attributes `step`, `run` (the name of its journal), if it failed `reason`, and if it repeats a training `scores`.
    """

    def __init__(
        self, path: Path, search: Search, direction: Literal["minimize", "maximize"], *, identity: Mapping[str, Any], num_validations: int
    ) -> None:
        """Open the study in the file `path`, or create it. `num_validations` is the number of validations of a whole training.

        `identity` is what all trials of a study have in common, such as the digest of the data. Raises Refusal if the study in the file has
        another `identity`, or if the file is not a study.
        """
        import optuna
        from sqlalchemy.exc import DatabaseError

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.search, self._path, self._direction = search, path, direction
        self._distributions = {key: distribution(entry) for key, entry in search.settings.space.items()}
        # nothing is pruned in the first quarter of a training, where the metric is noisy
        median, none = optuna.pruners.MedianPruner(n_warmup_steps=num_validations // 4), optuna.pruners.NopPruner()
        self._pruner = median if search.settings.pruner == "median" and not search.repeated else none
        try:
            self._storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
            self._study = optuna.create_study(
                storage=self._storage, study_name=search.settings.name, direction=direction, load_if_exists=True
            )
        except (DatabaseError, RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise Refusal(f"{path}: cannot be opened as a study ({reason}): restore it, or remove {path.parent} to begin anew") from None
        if IDENTITY not in self._study.user_attrs:  # the study is new
            self._study.set_user_attr(IDENTITY, dict(identity))
        self._identity = self._study.user_attrs[IDENTITY]
        self.refuse_changed(identity)

    def close(self) -> None:
        self._storage.remove_session()
        self._storage.engine.dispose()

    def refuse_changed(self, now: Mapping[str, Any]) -> None:
        """Raise Refusal if `now` differs from the `identity` of the study, because its trials could not be compared with new ones."""
        if changed := [name for name, _ in differences(self._identity, now)]:
            raise Refusal(
                f"{self._path}: since this search began, these have changed: {listed(changed, MOST_SHOWN)}: undo the change, or write another "
                f"`name:` into the search file for a new search, or remove {self._path.parent}"
            )

    @property
    def trials(self) -> "list[FrozenTrial]":
        """Return all trials by number, as the database has them."""
        return self._study.trials

    @property
    def running(self) -> list[int]:
        """Return the numbers of the trials that have begun and not finished."""
        return [trial.number for trial in self.trials if not trial.state.is_finished()]

    def ranked(self) -> "list[FrozenTrial]":
        """Return all trials: complete ones by value, then pruned ones by their last step and value, then the others. Of equal trials, the
        earlier is first. Trials that repeat a training are in the order of the grid.
        """

        def order(trial: "FrozenTrial") -> tuple[int, int, float, int]:
            state, value = trial.state.name, trial.value or 0.0  # only trials that have finished well have a value
            steps = 0 if state == "COMPLETE" else -trial.user_attrs.get("step", 0)
            return [*OUTCOMES].index(state), steps, value if self._direction == "minimize" else -value, trial.number

        return self.trials if self.search.repeated else sorted(self.trials, key=order)

    def best(self) -> "FrozenTrial | None":
        """Return the best trial; None if no trial is complete, or if the trials repeat a training, because the best one would be so by chance."""
        first = next(iter(self.ranked()), None)
        return first if first and first.state.name == "COMPLETE" and not self.search.repeated else None

    def begin(self) -> int:
        """Add a trial with proposed parameters, or those of the next combination of a grid, and return its number."""
        from optuna.trial import TrialState, create_trial

        trials = self.trials
        params = self.search.grid[len(trials)] if self.search.grid else self._proposal(trials)
        # a single write: after a kill, the database has all parameters of the trial or none
        self._study.add_trial(create_trial(state=TrialState.RUNNING, params=params, distributions=self._distributions))
        return len(trials)

    def _proposal(self, trials: "Sequence[FrozenTrial]") -> dict[str, Value]:
        """Return the parameters that Optuna proposes after `trials`, in a copy of the study in memory.

        The sampler is a new one for each trial, because the state of its random numbers is not in the database.
        """
        import optuna

        sampler = optuna.samplers.TPESampler(seed=derive(self.search.settings.seed, "trial", len(trials)) % 2**32)
        copy = optuna.create_study(direction=self._direction, sampler=sampler)
        copy.add_trials(trial for trial in trials if trial.state.is_finished())
        return copy.ask(self._distributions).params

    def should_prune(self, values: Sequence[float]) -> bool:
        """Return True if a trial with these values of its validations so far should be pruned after the last one."""
        from optuna.trial import TrialState, create_trial

        return self._pruner.prune(self._study, create_trial(state=TrialState.RUNNING, intermediate_values=dict(enumerate(values, 1))))

    def finish(self, trial: TrialFolder, state: State, value: float | None = None, **attributes: Any) -> None:
        """Record the outcome of a trial: its state, the value of a complete trial, those of its validations, and `attributes` by any names."""
        from optuna.trial import TrialState

        study = self._storage.get_study_id_from_name(self.search.settings.name)
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(study, trial.number)
        for validation, each in enumerate(trial.values, 1):
            self._storage.set_trial_intermediate_value(trial_id, validation, each)
        run = trial.journal.name if trial.journal else ""
        for name, attribute in {"step": trial.step, "run": run, **attributes}.items():
            self._storage.set_trial_user_attr(trial_id, name, attribute)
        self._study.tell(trial.number, value, TrialState[state])  # last: until then, a repeated search runs the trial again


def described(params: Mapping[str, Value]) -> str:
    """Return parameters in short form, such as "lr=3e-3 width=16"."""
    names = short_keys(list(params))
    return " ".join(f"{names[key]}={shortened(value)}" for key, value in params.items())


def shortened(value: Value) -> str:
    return short(float(f"{value:.3g}")) if isinstance(value, float) else short(value)


def table(trials: "Sequence[FrozenTrial]", metric: str, search: Search) -> list[dict[str, Any]]:
    """Return a row for each trial, by column. The value of a pruned trial is its last one. Trials that repeat a training have all metrics."""
    return [
        {
            "trial": trial.number,
            "outcome": OUTCOMES[trial.state.name],
            metric: trial.value,
            "step": trial.user_attrs.get("step", 0),
            **{key: trial.params[key] for key in search.settings.space},
            "run": str(trial.user_attrs.get("run", "")).rpartition("-")[2],  # the last part of its name
            "reason": trial.user_attrs.get("reason", ""),
            **trial.user_attrs.get("scores", {}),
        }
        for trial in trials
    ]


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table as CSV, with all digits."""
    header = dict.fromkeys(name for row in rows for name in row)
    return files.as_csv([*header], [[row.get(name) for name in header] for row in rows])


def print_table(rows: Sequence[Mapping[str, Any]], metric: str, search: Search) -> None:
    """Print the table, and below it the reasons of failed trials. Trials that repeat a training are not ranked, and have the metric of the test
    split, too.
    """
    names = short_keys([*search.settings.space])
    metrics, ranks = ([metric, metric.replace(VALID, TEST)], []) if search.repeated else ([metric], ["rank"])
    shown = []
    for rank, row in enumerate(rows, 1):
        first = [str(rank) if row["outcome"] == OUTCOMES["COMPLETE"] else "" for _ in ranks]
        values = ["" if row.get(name) is None else rounded(row[name]) for name in metrics]
        params = [shortened(row[key]) for key in names]
        shown.append([*first, str(row["trial"]), *values, str(row["step"] or ""), row["outcome"], *params, row["run"]])
    header = [*ranks, "trial", *metrics, "steps", "outcome", *names.values(), "run"]
    show(shown, header, right=header.index("outcome"))
    for row in rows:
        if row["reason"]:
            print(f"trial {row['trial']} failed: {row['reason']}")


class Spread(NamedTuple):
    """`deviation` is the sample standard deviation, which divides by n - 1. `low` and `high` are the bounds of the interval of the mean."""

    mean: float
    deviation: float
    low: float
    high: float


def spread(values: Sequence[float], *, folds: int | None) -> Spread:
    """Return the spread of at least two values, one of each training.

    The interval is that of Student's t distribution at the confidence level LEVEL. With `folds`, the trainings are those of a
    cross-validation. Any two of them share most of their samples, so that their values resemble each other. The variance of the mean is then
    that of Nadeau and Bengio (2003): larger by the ratio of the samples of a validation and of its training.
    """
    from scipy.stats import t  # late: the import takes a second

    mean, deviation = fmean(values), stdev(values)
    error = deviation * sqrt(1 / len(values) + (1 / (folds - 1) if folds else 0))
    return Spread(mean, deviation, *map(float, t.interval(LEVEL, len(values) - 1, mean, error) if error else (mean, mean)))


class Repetition(NamedTuple):
    """The complete trials with equal `params`, apart from those that repeat a training: their number, and the spread of each metric that all
    of at least two have.
    """

    params: Mapping[str, Value]
    num_trainings: int
    spreads: dict[str, Spread]


def repetitions(trials: "Sequence[FrozenTrial]", folds: int | None) -> list[Repetition]:
    """Return the repetitions among the trials. `folds` is the number of folds in params.yaml."""
    groups: dict[str, list[FrozenTrial]] = {}
    for trial in trials:
        groups.setdefault(repr({key: value for key, value in trial.params.items() if key not in REPEATED}), []).append(trial)
    found = []
    for group in groups.values():
        params, scores = group[0].params, [trial.user_attrs["scores"] for trial in group if "scores" in trial.user_attrs]
        names = [name for name in scores[0] if all(name in each for each in scores)] if len(scores) > 1 else []
        of_folds = params.get(FOLDS, folds) if "source.fold" in params else None
        spreads = {name: spread([each[name] for each in scores], folds=of_folds) for name in names}
        found.append(Repetition({key: value for key, value in params.items() if key not in REPEATED}, len(scores), spreads))
    return found


def print_spreads(repetition: Repetition, repeated: Sequence[str]) -> None:
    """Print the mean and the deviation of each metric. `repeated` are the keys in which the trainings differ."""
    of = f", {described(repetition.params)}" if repetition.params else ""
    differ = f"which differ in {' and '.join(repeated)}:" if repetition.spreads else "and a deviation needs two"
    print(f"{counted(repetition.num_trainings, 'complete training')}{of}, {differ}")
    cells = [(name, *map(rounded, each[:2]), f"{rounded(each.low)} to {rounded(each.high)}") for name, each in repetition.spreads.items()]
    show(cells, ("", "mean", "deviation", f"{LEVEL:.0%} interval of the mean"))
