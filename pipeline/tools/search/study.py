"""The study of a search, the ranked table of its trials, and the means of those that repeat a training.

The trials are in SQLite; Optuna's sampler and pruner work on a copy in memory. Each change of the database is one transaction, and a trial
is written with all its parameters. The copy is rebuilt from the database when the study is opened, so a search that was killed and repeated
proposes and prunes like a search that was never killed.
"""

import importlib.util
import secrets
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pipeline.core import files
from pipeline.core.identity import differences
from pipeline.core.raw_dataset import TEST, VALID
from pipeline.core.refusal import Refusal, counted, listed
from pipeline.core.seeding import derive
from pipeline.inference.digits import rounded
from pipeline.runs.run_description import short, short_keys
from pipeline.runs.table import show
from pipeline.tools.search.settings import Search, Value
from pipeline.tools.search.spread import LEVEL, REPEATED, Spread, spread

if TYPE_CHECKING:
    from optuna import Study as OptunaStudy
    from optuna.pruners import BasePruner
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial, Trial, TrialState

FILE = "study.db"
IDENTITY, ID = "begun", "id"
"""The names in the database of two attributes of the study: everything that must not change during the search, and its unique id."""
MOST_SHOWN = 5
COMPLETE, PRUNED, FAILED, RUNNING = "complete", "pruned", "failed", "unfinished"
ORDER = (COMPLETE, PRUNED, RUNNING, FAILED)


def refuse_missing_optuna() -> None:
    if importlib.util.find_spec("optuna") is None:
        raise Refusal("Optuna is not installed: run `make setup-search`")


class Study:
    """An open study. Use it only in the process that holds the lock of the search."""

    def __init__(
        self, path: Path, search: Search, direction: Literal["minimize", "maximize"], *, identity: Mapping[str, Any], num_validations: int
    ) -> None:
        """Open the study in the file `path`, or create it. `num_validations` is the number of validations of a whole training.

        `identity` is what all trials of a study have in common, such as the digest of the data. Raises Refusal if the study in the file has
        another `identity`, or if the file is not a study.
        """
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._seed, self._name, self._direction = search.settings.seed, search.settings.name, direction
        self._distributions = {key: entry.distribution for key, entry in search.space.items()}
        self._grid, self._repeats = search.grid, bool(search.repeated)
        if not path.exists():
            create(path, self._name, direction, identity)
        self._storage = opened(path)
        self._id = self._storage.get_study_id_from_name(self._name)
        attributes = self._storage.get_study_user_attrs(self._id)
        self.id, self._path, self._identity = str(attributes[ID]), path, attributes[IDENTITY]
        self.refuse_changed(identity)
        self._memory: OptunaStudy = optuna.create_study(
            study_name=self._name, direction=direction, pruner=pruner(search.settings.pruner, num_validations)
        )
        self._running: dict[int, Trial] = {}
        for trial in self.trials:
            if trial.state.is_finished():
                self._memory.add_trial(trial)
            else:
                self._memory.enqueue_trial(trial.params)
                self._running[trial.number] = self._memory.ask(self._distributions)

    def close(self) -> None:
        close(self._storage)

    def refuse_changed(self, now: Mapping[str, Any]) -> None:
        """Raise Refusal if `now` differs from the `identity` of the study, because its trials could not be compared with new ones."""
        if changed := [name for name, _ in differences(self._identity, now)]:
            raise Refusal(
                f"{self._path}: since this search began, these have changed: {listed(changed, MOST_SHOWN)}: undo the change, or write another `name:` into the "
                f"search file for a new search, or remove {self._path.parent}"
            )

    @property
    def trials(self) -> "list[FrozenTrial]":
        """Return all trials by number, as the database has them."""
        return self._storage.get_all_trials(self._id)

    def rows(self) -> "list[TrialSummary]":
        """Return a row for each trial: complete ones by value, then pruned ones by their last step, then the others. Of equal trials, the
        earlier is first. Trials that repeat a training are in the order of the grid.
        """

        def order(row: TrialSummary) -> tuple[int, int, float, int]:
            value = float("inf") if row.value is None else row.value if self._direction == "minimize" else -row.value
            return ORDER.index(row.outcome), -row.step if row.outcome != COMPLETE else 0, value, row.number

        rows = map(summary_of, self.trials)
        return list(rows) if self._repeats else sorted(rows, key=order)

    def best(self) -> "TrialSummary | None":
        """Return the best trial; None if no trial is complete, or if the trials repeat a training, because the best one would be so by chance."""
        rows = self.rows()
        return rows[0] if rows and rows[0].outcome == COMPLETE and not self._repeats else None

    @property
    def running(self) -> list[int]:
        """Return the numbers of the trials that have begun and not finished."""
        return sorted(self._running)

    def params(self, number: int) -> dict[str, Value]:
        return dict(self._memory.trials[number].params)

    def begin(self) -> int:
        """Propose parameters for a new trial, and return its number. The proposal depends on the seed, the number and the other trials, or on
        the number alone in a grid.
        """
        import optuna

        number = len(self._memory.trials)
        # a fresh sampler for each trial: the state of its random numbers is not in the database
        self._memory.sampler = optuna.samplers.TPESampler(seed=derive(self._seed, "trial", number) % 2**32)
        if self._grid:
            self._memory.enqueue_trial(self._grid[number])
        self._running[number] = trial = self._memory.ask(self._distributions)
        template = optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING, params=trial.params, distributions=self._distributions)
        self._storage.create_new_trial(self._id, template_trial=template)
        return number

    def report(self, number: int, validation: int, value: float) -> bool:
        """Record the value of a validation, counted from 1. Return True if the trial should be pruned."""
        trial = self._running[number]
        trial.report(value, validation)
        self._storage.set_trial_intermediate_value(self._trial_id(number), validation, value)
        return trial.should_prune()

    def finish(self, number: int, state: "TrialState", value: float | None = None, **attributes: Any) -> None:
        """Record the end of a trial: its state, the value of a complete trial, and `attributes` by any names."""
        trial, trial_id = self._running.pop(number), self._trial_id(number)
        for name, attribute in attributes.items():
            self._storage.set_trial_user_attr(trial_id, name, attribute)
        for name, attribute in self._memory.trials[number].system_attrs.items():  # Hyperband also reads those of other trials
            self._storage.set_trial_system_attr(trial_id, name, attribute)
        ended = self._memory.tell(trial, value, state)
        self._storage.set_trial_state_values(trial_id, state, ended.values)  # last: after an earlier kill, the trial is repeated

    def _trial_id(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._id, number)


def create(path: Path, name: str, direction: str, identity: Mapping[str, Any]) -> None:
    """Create the file of a study without trials. It has a temporary name until it is complete."""
    from optuna.study import StudyDirection

    for leftover in path.parent.glob(f".{path.name}.*.draft*"):  # including SQLite's own files
        leftover.unlink()
    with files.replacing(path) as draft:
        storage = opened(draft)
        study = storage.create_new_study([StudyDirection[direction.upper()]], name)
        storage.set_study_user_attr(study, IDENTITY, dict(identity))
        storage.set_study_user_attr(study, ID, f"{name}-{secrets.token_hex(4)}")
        close(storage)


def close(storage: "RDBStorage") -> None:
    storage.remove_session()
    storage.engine.dispose()


def opened(path: Path) -> "RDBStorage":
    """Open the database in the file `path`. Raises Refusal if it is not the database of a study."""
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import DatabaseError

    try:
        return RDBStorage(f"sqlite:///{path}")
    except (DatabaseError, RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise Refusal(f"{path}: cannot be opened as a study ({reason}): restore it, or remove {path.parent} to begin anew") from None


def pruner(name: str, num_validations: int) -> "BasePruner":
    """Return Optuna's pruner, which counts validations as steps.

    The median pruner prunes nothing in the first quarter of a training, where the metric is noisy.
    """
    from optuna.pruners import HyperbandPruner, MedianPruner, NopPruner

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns that some pruners are experimental
        if name == "median":
            return MedianPruner(n_warmup_steps=num_validations // 4)
        if name == "hyperband":
            return HyperbandPruner(max_resource=num_validations)
        return NopPruner()


class TrialSummary(NamedTuple):
    """Holds a row of the table of a search: a trial and its result.

    `value` is the value of the metric, of a pruned trial the last one. `reason` says why a trial failed. `scores` are the metrics of a trial
    that repeats a training.
    """

    number: int
    outcome: str
    value: float | None
    step: int
    params: Mapping[str, Value]
    run: str
    reason: str = ""
    scores: Mapping[str, float] = {}


def summary_of(trial: "FrozenTrial") -> TrialSummary:
    """Return the summary of a trial of the study."""
    from optuna.trial import TrialState

    outcomes = {TrialState.COMPLETE: COMPLETE, TrialState.PRUNED: PRUNED, TrialState.FAIL: FAILED}
    outcome = outcomes.get(trial.state, RUNNING)
    value = trial.value if outcome in (COMPLETE, PRUNED) else None
    attributes = trial.user_attrs
    run = str(attributes.get("run", "")).rpartition("-")[2]
    step, reason, scores = attributes.get("step", 0), attributes.get("reason", ""), attributes.get("scores", {})
    return TrialSummary(trial.number, outcome, value, step, trial.params, run, reason, scores)


def described(params: Mapping[str, Value]) -> str:
    """Return parameters in short form, such as "lr=3e-3 width=16"."""
    names = short_keys(list(params))
    return " ".join(f"{names[key]}={shortened(value)}" for key, value in params.items())


def shortened(value: Value) -> str:
    return short(float(f"{value:.3g}")) if isinstance(value, float) else short(value)


def print_table(rows: Sequence[TrialSummary], metric: str, keys: Sequence[str]) -> None:
    """Print rows as a table, and below it the reasons of failed trials. `keys` are the searched parameters.

    Rows with scores, which are not ranked, also show the metric of the test split.
    """
    names, cells, test = short_keys(keys), list[list[str]](), metric.replace(VALID, TEST)
    ranked = not any(row.scores for row in rows)
    for rank, row in enumerate(rows, 1):
        value = "" if row.value is None else rounded(row.value)
        params = [shortened(row.params[key]) if key in row.params else "" for key in keys]
        shown_rank = str(rank) if row.outcome == COMPLETE else ""
        more = rounded(row.scores[test]) if test in row.scores else ""
        cells.append([shown_rank, str(row.number), value, more, str(row.step or ""), row.outcome, *params, row.run])
    header = ["rank", "trial", metric, test, "steps", "outcome", *(names[key] for key in keys), "run"]
    unused = 3 if ranked else 0
    for line in (header, *cells):
        del line[unused]
    show(cells, header, right=header.index("outcome"))
    for row in rows:
        if row.reason:
            print(f"trial {row.number} failed: {row.reason}")


def as_csv(rows: Sequence[TrialSummary], metric: str, keys: Sequence[str]) -> str:
    """Return rows as CSV, with all digits. `keys` are the searched parameters."""
    more = [name for name in dict.fromkeys(name for row in rows for name in row.scores) if name != metric]
    cells = (
        (row.number, row.outcome, row.value, row.step, *map(row.params.get, keys), row.run, row.reason, *map(row.scores.get, more))
        for row in rows
    )
    return files.as_csv(["trial", "outcome", metric, "step", *keys, "run", "reason", *more], cells)


class Repetition(NamedTuple):
    """The trials with equal `params`, apart from those that repeat a training. `scores` are the metrics of each complete one."""

    params: Mapping[str, Value]
    scores: list[Mapping[str, float]]
    folds: int | None

    def spreads(self) -> dict[str, Spread]:
        """Return the spread of each metric that all of at least two trainings have, by its name."""
        names = [name for name in self.scores[0] if all(name in each for each in self.scores)] if len(self.scores) > 1 else []
        return {name: spread([each[name] for each in self.scores], folds=self.folds) for name in names}


def repetitions(rows: Sequence[TrialSummary], folds: int | None) -> list[Repetition]:
    """Return the repetitions among the trials. `folds` is the number of folds in params.yaml."""
    found = dict[str, Repetition]()
    for row in rows:
        params = {key: value for key, value in row.params.items() if key not in REPEATED}
        values: dict[str, Any] = {"source.folds": folds, **row.params}
        of_row = values["source.folds"] if "source.fold" in values else None
        repetition = found.setdefault(repr(params), Repetition(params, [], of_row))
        if row.scores:
            repetition.scores.append(row.scores)
    return list(found.values())


def print_spreads(repetition: Repetition, repeated: Sequence[str]) -> None:
    """Print the mean and the deviation of each metric. `repeated` are the keys in which the trainings differ."""
    of = f", {described(repetition.params)}" if repetition.params else ""
    differ = f"which differ in {' and '.join(repeated)}:" if repetition.spreads() else "and a deviation needs two"
    print(f"{counted(len(repetition.scores), 'complete training')}{of}, {differ}")
    cells = [
        (name, rounded(found.mean), rounded(found.deviation), f"{rounded(found.low)} to {rounded(found.high)}")
        for name, found in repetition.spreads().items()
    ]
    show(cells, ("", "mean", "deviation", f"{LEVEL:.0%} interval of the mean"))
