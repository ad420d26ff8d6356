"""The search file: the metric, the method and the space of a search, validated like `params.yaml`; and what must not change while it runs."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, ValidationError

from pipeline.core import files, identity
from pipeline.core.environment import Paths
from pipeline.core.params import UPGRADE, errors_of, explain, refusal, without_echoes
from pipeline.core.prepared import read_record
from pipeline.core.raw_dataset import VALID
from pipeline.core.refusal import Problem, Refusal
from pipeline.core.section import Section, flatten
from pipeline.core.spec import Direction
from pipeline.core.yaml_document import Document
from pipeline.tools.check.command import refuse_misfits
from pipeline.tools.params.commented_yaml import on_one_line
from pipeline.tools.params.editing import edited

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Value = str | int | float | bool | None
REPEATED = ("seed", "source.fold")
"""Keys whose values repeat one training, each by chance: none of them is the best, but they have a mean and a deviation."""
FOLDS = "source.folds"
REPEATING = (*REPEATED, FOLDS)
"""These keys, and the one that only makes sense with `source.fold`."""
UNSEARCHED = {
    "seed": "would be chosen by chance",
    "source": "decides the data, which is prepared once for all trials",
    "evaluate": "has no effect on a training",
}
"""Sections of `params.yaml` that cannot be searched, with the reason."""


def distribution(entry: Mapping[str, Any]) -> "BaseDistribution":
    """Return the range of a key as Optuna has it. Raises LookupError, TypeError or ValueError if it is none. Warns of a step that does not reach
    `high`.
    """
    from optuna import distributions  # late: Optuna is installed for this command only

    of_type: Mapping[str, Callable[..., BaseDistribution]] = {
        "float": distributions.FloatDistribution,
        "int": distributions.IntDistribution,
        "categorical": distributions.CategoricalDistribution,
    }
    return of_type[entry["type"]](**{name: value for name, value in entry.items() if name != "type"})


def single_values(entry: Mapping[str, Any]) -> Sequence[Value]:
    """Return all values of a range, in order; none if they are not single ones."""
    if entry["type"] == "int" and not entry.get("log"):
        return range(entry["low"], entry["high"] + 1, entry.get("step", 1))
    return tuple(entry.get("choices", ()))


class SearchSettings(Section):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    """Name of the search, and of its folder in `.pipeline/search/`."""
    method: Literal["tpe", "grid"]
    """`tpe` proposes parameters from the results so far. `grid` trains with each combination of the values in the space, in order; only then may
    `seed`, `source.folds` and `source.fold` be in the space."""
    trials: Annotated[int, Field(ge=1, le=10_000)]
    """Number of trials, pruned and failed ones included; with `grid` at most one for each combination."""
    seed: NonNegativeInt
    """Seed of the proposed parameters, without effect with `grid`. The trainings use the seed of `params.yaml`."""
    metric: str | None
    """Metric of the validation split; null for `train.metric` of `params.yaml`."""
    direction: Literal["minimize", "maximize"] | None
    """null for the direction of the metric."""
    pruner: Literal["median", "none"]
    """`median` ends a trial whose best validation so far is worse than the median of the complete trials at the same validation. No training is
    ended that is repeated, because the mean would lack those that begin badly."""
    processes: Annotated[int, Field(ge=1, le=64)]
    """Number of trials that train at the same time."""
    space: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    """Range of each searched parameter, by its key, such as `optimizer.learning_rate`: the arguments of the distribution of Optuna that `type`
    names."""

    ADDED: ClassVar = {"method": "tpe"}


@dataclass(frozen=True)
class Search:
    """A valid search file. `params` is the text of `params.yaml`, in which each trial replaces the values of the keys in `space`."""

    document: Document
    settings: SearchSettings
    params: str

    @classmethod
    def read(cls, path: Path, params: Document) -> "Search":
        """Read the search file `path`, and validate it, also against the current `params.yaml`, which is `params`.

        Raises Refusal with one line for each problem: a missing file, an unknown key or a value of a wrong type, and in the space a key that
        is not in `params.yaml`, a section that cannot be searched, or a value that would be invalid in `params.yaml`.
        """
        if not path.is_file():
            raise Refusal(f"{path}: is missing: give a search file, such as presets/search/digits.yaml")
        document, text = Document.read(path), params.path.read_text(encoding="utf-8")
        settings, problems = checked(document.data)
        if settings:
            found = (unsearchable(key, entry, is_grid=settings.method == "grid") for key, entry in settings.space.items())
            problems = [problem for problem in found if problem] or [*invalid_values(settings.space, text)]
        if problems or settings is None:
            raise refusal(document, problems)
        return cls(document, settings, text)

    @property
    def grid(self) -> list[dict[str, Value]]:
        """Return all combinations of the values in the space, in order; an empty list if the method is another one."""
        combinations = product(*map(single_values, self.settings.space.values())) if self.settings.method == "grid" else ()
        return [dict(zip(self.settings.space, values, strict=True)) for values in combinations]

    @property
    def repeated(self) -> list[str]:
        """Return the keys of the space whose values repeat a training."""
        return [key for key in self.settings.space if key in REPEATED]

    def target(self, metrics: Mapping[str, Direction], default: str) -> tuple[str, Literal["minimize", "maximize"]]:
        """Return the metric of the search, and its direction.

        `metrics` are the metrics that a validation reports, with their directions; `default` is `train.metric`.

        Raises Refusal if there is no such metric of the validation split.
        """
        metric = self.settings.metric or default
        known = {f"{VALID}/{name}": direction for name, direction in metrics.items()}
        if metric not in known:
            reason = "the test split must not select parameters" if metric.startswith("test/") else "no validation reports this metric"
            raise refusal(self.document, [Problem(f"{metric}: {reason}", f"choose one of {', '.join(known)}", ("metric",))])
        return metric, self.settings.direction or ("minimize" if known[metric] == "min" else "maximize")


def replaced(text: str, values: Mapping[str, Value]) -> str:
    """Return `text`, that of `params.yaml`, with other values, by their keys. Raises Refusal if they are invalid."""
    return edited(text, [f"{key}={on_one_line(value)}" for key, value in values.items()])


def checked(data: Any) -> tuple[SearchSettings | None, list[Problem]]:
    """Validate the content of a search file, but for its ranges. Return its settings, and the problems."""
    try:
        return SearchSettings.model_validate_json(json.dumps(data, default=str)), []
    except ValidationError as error:
        problems = []
        for problem in errors_of(error, data):
            found = explain(problem, SearchSettings)
            if problem["type"] == "missing":
                upgrade = UPGRADE.replace("--upgrade", "--upgrade FILE")
                found = replace(found, remedy=upgrade if found.remedy == UPGRADE else "docs/search.md lists the keys")
            problems.append(found)
        return None, without_echoes(problems)


def unsearchable(key: str, entry: Mapping[str, Any], *, is_grid: bool) -> Problem | None:
    """Return why a key of the space cannot be searched, or not in this range; None if it can."""
    at, reason = ("space", key), UNSEARCHED.get(key.partition(".")[0])
    try:
        distribution(entry)
        num_values = len(single_values(entry))
    except (LookupError, TypeError, ValueError) as error:
        return Problem(f"should be a range, such as {{type: int, low: 8, high: 32}} ({error})", "docs/search.md has examples", at)
    if reason and not (is_grid and key in REPEATING):
        remedy = "write `method: grid` to repeat the training with each value" if key in REPEATING else "remove it"
        return Problem(f"cannot be searched: it {reason}", remedy, at)
    if key == FOLDS and num_values != 1:
        return Problem("needs one number, because models of other folds validate other samples", "write a search for each", at)
    if is_grid and not num_values:
        return Problem("has no single values for a grid", "write {type: categorical, choices: [...]}", at)
    return None


def invalid_values(space: Mapping[str, Mapping[str, Any]], text: str) -> Iterator[Problem]:
    """Yield the problem of each key with values of which `text`, that of `params.yaml`, would be invalid or not fit together. A key with one
    value has it in all trials.
    """
    single = {key: values[0] for key, entry in space.items() if len(values := single_values(entry)) == 1}
    if problem := misfit(text, single):
        yield Problem(problem, location=("space",))
        return
    for key, entry in space.items():
        ends = entry.get("choices") or (entry["low"], entry["high"])  # if these are valid, so are the values between them
        if problem := next(filter(None, (misfit(text, single | {key: value}) for value in ends)), ""):
            yield Problem(problem, location=("space", key))


def misfit(text: str, values: Mapping[str, Value]) -> str:
    """Return why `text`, that of `params.yaml`, would be invalid with other values; "" if it would not."""
    try:
        refuse_misfits(Document.of(replaced(text, values), Paths().params))
    except Refusal as refused:
        return refused.on_one_line
    return ""


def identity_of(search: Search, params: Document, stages: Sequence[str], *, metric: str, direction: str) -> dict[str, Any]:
    """Return what all trials of `search` have in common, by the names that messages show. Data and code are read at each call.

    `params` is `params.yaml` without the values of a trial, and `stages` are those that a trial runs.
    """
    document, paths, code = params.data, Paths(), set[str]()
    for stage, section in product(stages, ("model", "loss")):
        chosen = search.settings.space.get(section) or search.settings.space.get(f"{section}.name")
        for name in single_values(chosen) if chosen else [document[section]["name"]]:
            code |= {*identity.dependencies(stage, document | {section: {**document[section], "name": name}}, paths.top)}
    varied = tuple(f"{key}." for key in search.settings.space)
    return {
        **{f"space.{key}": dict(entry) for key, entry in search.settings.space.items()},
        "metric": metric,
        "direction": direction,
        **search.settings.model_dump(include={"method", "pruner", "seed"}),
        **{f"{params.path} {key}": value for key, value in flatten(document).items() if not f"{key}.".startswith(varied)},
        "data/prepared": read_record(paths.prepared).digest,
        paths.lock.name: files.digest(paths.lock),
        f"the code of {' and '.join(stages)}": identity.code_digest(sorted(code), paths.top),
    }
