"""The search file: the metric, the method and the space of a search, validated like `params.yaml`; and what must not change while it runs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt, ValidationError, ValidationInfo, field_validator

from pipeline.core import files, identity
from pipeline.core.environment import Paths
from pipeline.core.params import UPGRADE, errors_of, explain, refusal, without_echoes
from pipeline.core.prepared import read_record
from pipeline.core.raw_dataset import VALID
from pipeline.core.refusal import Location, Problem, Refusal
from pipeline.core.section import SECTIONS, Section, flatten, leaves, suggestion
from pipeline.core.spec import Direction
from pipeline.core.yaml_document import Document
from pipeline.tools.check.misfits import refuse_misfits
from pipeline.tools.params.commented_yaml import on_one_line
from pipeline.tools.params.editing import edited
from pipeline.tools.search.spread import REPEATED, REPEATING

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Checked = TypeVar("Checked", bound=BaseModel)
Value = str | int | float | bool | None
UNSEARCHED = {
    "seed": "would be chosen by chance",
    "source": "decides the data, which is prepared once for all trials",
    "evaluate": "has no effect on a training",
}
"""Sections of `params.yaml` that cannot be searched, with the reason."""
DIRECTIONS: dict[Direction, Literal["minimize", "maximize"]] = {"min": "minimize", "max": "maximize"}


class NumberRange(Section):
    """The keys that `float` and `int` have in common."""

    type: str
    low: float
    high: float
    log: bool = False

    @field_validator("high")
    @classmethod
    def refuse_high_below_low(cls, high: float, info: ValidationInfo) -> float:
        if high < info.data.get("low", high):
            raise ValueError(f"is below `low`, which is {info.data['low']}: write a larger number")
        return high

    @field_validator("log")
    @classmethod
    def refuse_log_of_zero(cls, log: bool, info: ValidationInfo) -> bool:
        if log and info.data.get("low", 1) <= 0:
            raise ValueError("a logarithmic range needs `low` above 0: raise `low`, or write `log: false`")
        return log

    @property
    def ends(self) -> Mapping[str, list[Value]]:
        return {"low": [self.low], "high": [self.high]}


class FloatRange(NumberRange):
    type: Literal["float"]
    values: ClassVar[Sequence[Value]] = ()

    @property
    def distribution(self) -> "BaseDistribution":
        from optuna.distributions import FloatDistribution  # late: Optuna is installed for this command only

        return FloatDistribution(self.low, self.high, log=self.log)


class IntRange(NumberRange):
    type: Literal["int"]
    low: int
    high: int
    step: PositiveInt = 1

    @field_validator("step")
    @classmethod
    def refuse_unreachable_high(cls, step: int, info: ValidationInfo) -> int:
        low = info.data.get("low", 0)
        high = info.data.get("high", low)  # which is missing if it was refused
        if step > 1 and info.data.get("log"):
            raise ValueError("cannot be combined with a logarithmic range: leave it out, or write `log: false`")
        if (high - low) % step:
            raise ValueError(f"{high} cannot be reached from {low} in steps of {step}: write `high: {high - (high - low) % step}`")
        return step

    @property
    def values(self) -> Sequence[Value]:
        return () if self.log else range(self.low, self.high + 1, self.step)

    @property
    def distribution(self) -> "BaseDistribution":
        from optuna.distributions import IntDistribution  # late: Optuna is installed for this command only

        return IntDistribution(self.low, self.high, log=self.log, step=self.step)


class Choices(Section):
    type: Literal["categorical"]
    choices: Annotated[tuple[Any, ...], Field(min_length=1, max_length=100)]

    @field_validator("choices")
    @classmethod
    def refuse_lists_and_duplicates(cls, choices: tuple[Any, ...]) -> tuple[Any, ...]:
        if found := next((choice for choice in choices if isinstance(choice, list | dict)), None):
            raise ValueError(f"{on_one_line(found)} is not a single value: a choice is a number, a text, true, false or null")
        if repeated := next((choice for place, choice in enumerate(choices) if choice in choices[:place]), None):
            raise ValueError(f"{on_one_line(repeated)} is listed twice: remove one")
        return choices

    @property
    def ends(self) -> Mapping[str, list[Value]]:
        return {"choices": list(self.choices)}

    @property
    def values(self) -> Sequence[Value]:
        return self.choices

    @property
    def distribution(self) -> "BaseDistribution":
        from optuna.distributions import CategoricalDistribution  # late: Optuna is installed for this command only

        return CategoricalDistribution(self.choices)


Range = FloatRange | IntRange | Choices
RANGES: dict[str, type[Range]] = {"float": FloatRange, "int": IntRange, "categorical": Choices}


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
    pruner: Literal["median", "hyperband", "none"]
    """`median` ends a trial whose best validation so far is worse than the median of the others at the same validation."""
    processes: Annotated[int, Field(ge=1, le=64)]
    """Number of trials that train at the same time."""
    space: Annotated[dict[str, Any], Field(min_length=1)]
    """Range of each searched parameter, by its key, such as `optimizer.learning_rate`."""

    ADDED: ClassVar = {"method": "tpe"}


@dataclass(frozen=True)
class Search:
    """A valid search file. `params` is the text of `params.yaml`, in which each trial replaces the values of the keys in `space`."""

    document: Document
    settings: SearchSettings
    space: Mapping[str, Range]
    params: str

    @classmethod
    def read(cls, path: Path, params: Document) -> "Search":
        """Read the search file `path`, and validate it, also against the current `params.yaml`, which is `params`.

        Raises Refusal with one line for each problem: a missing file, an unknown key or a value of a wrong type, and in the space a key that
        is not in `params.yaml`, a section that cannot be searched, or a value that would be invalid in `params.yaml`.
        """
        if not path.is_file():
            raise Refusal(f"{path}: is missing: give a search file, such as presets/search/digits.yaml")
        document = Document.read(path)
        settings, problems = checked(document.data, SearchSettings)
        entries = settings.space if settings else document.data.get("space")
        grid = settings is not None and settings.method == "grid"
        space = dict[str, Range]()
        for key, entry in entries.items() if isinstance(entries, Mapping) else ():
            found, more = checked_range(key, entry)
            problems += more or ([] if grid and key in REPEATING else unfit_keys(key, params))
            if found:
                space[key] = found
            if found and grid and not found.values:
                problems.append(Problem("has no single values for a grid", "write {type: categorical, choices: [...]}", ("space", key)))
        if settings and settings.pruner != "none" and any(key in space for key in REPEATED):
            problems.append(Problem("would leave out the trainings that begin badly, and so change the mean", "write none", ("pruner",)))
        text = params.path.read_text(encoding="utf-8")
        if not problems:
            problems = list(unfit_space(space, text))
        if problems or settings is None:
            raise refusal(document, problems)
        return cls(document, settings, space, text)

    @property
    def grid(self) -> list[dict[str, Value]]:
        """Return all combinations of the values in the space, in order; an empty list if the method is another one."""
        if self.settings.method != "grid":
            return []
        return [dict(zip(self.space, values, strict=True)) for values in product(*(entry.values for entry in self.space.values()))]

    @property
    def repeated(self) -> list[str]:
        """Return the keys of the space whose values repeat a training."""
        return [key for key in self.space if key in REPEATED]

    def text_of(self, values: Mapping[str, Value]) -> str:
        """Return the text of `params.yaml` with `values`, the parameters of a trial. Raises Refusal if they do not fit each other."""
        return edited(self.params, [f"{key}={on_one_line(value)}" for key, value in values.items()])

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
        return metric, self.settings.direction or DIRECTIONS[known[metric]]


def checked(data: Any, kind: type[Checked], at: Location = ()) -> tuple[Checked | None, list[Problem]]:
    """Validate the mapping `data`, which is at the location `at` of the file. Return the object of the class `kind`, and the problems."""
    try:
        return kind.model_validate_json(json.dumps(data, default=str)), []
    except ValidationError as error:
        problems = []
        for problem in errors_of(error, data):
            found = explain(problem, kind)
            if problem["type"] == "missing":
                upgrade = UPGRADE.replace("--upgrade", "--upgrade FILE")
                found = replace(found, remedy=upgrade if found.remedy == UPGRADE else "docs/search.md lists the keys")
            problems.append(replace(found, location=(*at, *found.location)))
        return None, without_echoes(problems)


def checked_range(key: str, entry: Any) -> tuple[Range | None, list[Problem]]:
    at, types = ("space", key), ", ".join(RANGES)
    if not isinstance(entry, Mapping):
        return None, [Problem("should be a range, such as {type: float, low: 1e-4, high: 1e-1, log: true}", location=at)]
    if entry.get("type") not in [*RANGES]:  # a list, because the type in the file may not be hashable
        problem = f"there is no type {on_one_line(entry['type'])}" if "type" in entry else "is missing"
        return None, [Problem(problem, f"choose one of {types}", (*at, "type"))]
    return checked(entry, RANGES[entry["type"]], at)


def unfit_keys(key: str, params: Document) -> list[Problem]:
    """Return the problem of a key in the space that is not a parameter, or that cannot be searched."""
    at, section = ("space", key), key.partition(".")[0]
    known = (*params.data, *(path for path, _ in leaves(params.data)))
    if section in UNSEARCHED:
        remedy = "write `method: grid` to repeat the training with each value" if key in REPEATING else "remove it"
        return [Problem(f"cannot be searched: it {UNSEARCHED[section]}", remedy, at)]
    if section not in SECTIONS or key not in known:
        remedy = suggestion(key, known) if section in SECTIONS else suggestion(section, SECTIONS)
        return [Problem(f"is not a key of {params.path}", remedy, at)]
    return []


def unfit_space(space: Mapping[str, Range], text: str) -> Iterator[Problem]:
    """Yield the problems of the values in the space with `text`, that of `params.yaml`. A key with one value has it in all trials."""
    single = {key: entry.values[0] for key, entry in space.items() if len(entry.values) == 1}
    if (folds := REPEATING[1]) in space and folds not in single:
        yield Problem("needs one number, because models of other folds validate other samples", "write a search for each", ("space", folds))
        return
    try:
        text = edited(text, [f"{key}={on_one_line(value)}" for key, value in single.items()])
    except Refusal as refused:
        yield Problem(refused.on_one_line, location=("space",))
    else:
        for key, entry in space.items():
            yield from unfit_values(key, entry, text)


def unfit_values(key: str, entry: Range, text: str) -> Iterator[Problem]:
    """Yield a problem for each end or choice of a range with which `text`, that of `params.yaml`, would be invalid or not fit together."""
    for name, values in entry.ends.items():
        for value in values:
            try:
                refuse_misfits(Document.of(edited(text, [f"{key}={on_one_line(value)}"]), Paths().params))
            except Refusal as refused:
                yield Problem(refused.on_one_line, location=("space", key, name))


def identity_of(search: Search, params: Document, paths: Paths, *, metric: str, direction: str) -> dict[str, Any]:
    """Return what all trials of `search` have in common, by the names that messages show. Data and code are read at each call.

    `params` is `params.yaml` without the values of a trial.
    """
    settings, document = search.settings, params.data
    code = {}
    for model, loss in product(names_of("model", search, params), names_of("loss", search, params)):
        chosen = {section: {**document[section], "name": name} for section, name in (("model", model), ("loss", loss))}
        listed = identity.dependencies("train", document | chosen, paths.top)
        code[f"the code of {model} with {loss}"] = identity.code_digest(listed, paths.top)
    if any(key.startswith("source.") for key in search.space):
        code["the code of prepare"] = identity.code_digest(identity.dependencies("prepare", document, paths.top), paths.top)
    searched = tuple(f"{key}." for key in search.space)
    fixed = {key: value for key, value in flatten(document).items() if not f"{key}.".startswith(searched)}
    if search.repeated:
        code["the code of evaluate"] = identity.code_digest(identity.dependencies("evaluate", document, paths.top), paths.top)
    else:
        fixed = {key: value for key, value in fixed.items() if key.partition(".")[0] != "evaluate"}
    return {
        **{f"space.{key}": entry.model_dump(mode="json") for key, entry in search.space.items()},
        "metric": metric,
        "direction": direction,
        "method": settings.method,
        "pruner": settings.pruner,
        "seed": settings.seed,
        **{f"{params.path} {key}": value for key, value in fixed.items()},
        "data/prepared": read_record(paths.prepared).digest,
        paths.lock.name: files.digest(paths.lock),
        **code,
    }


def names_of(section: str, search: Search, params: Document) -> list[str]:
    """Return the value of the key `name` of a section in every trial, or all of its choices."""
    chosen = search.space.get(section) or search.space.get(f"{section}.name")
    return [str(name) for name in chosen.choices] if isinstance(chosen, Choices) else [params.data[section]["name"]]
