"""Validate `params.yaml` into typed sections. All errors are reported at once, each with file, line, key and remedy."""

import json
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from pipeline.io import untrusted
from pipeline.params.document import MOST_BYTES, Document, Location
from pipeline.params.evaluate import EvaluateParams
from pipeline.params.prepare import PrepareParams
from pipeline.params.train import TrainParams
from pipeline.refusal import Refusal
from pipeline.registry import Family

Params = TypeVar("Params", bound=BaseModel)
Problem = tuple[Location, str]
STAGE_PARAMS: dict[str, type[BaseModel]] = {"prepare": PrepareParams, "train": TrainParams, "evaluate": EvaluateParams}
SECTIONS = tuple(dict.fromkeys(name for params in STAGE_PARAMS.values() for name in params.model_fields))
KEY = re.compile(r"(\w+(?:\.\w+)*): ")
MOST_SHOWN = 60
NEAR = 0.7
EXPECTED = {
    "int_type": "should be a whole number",
    "int_from_float": "should be a whole number",
    "int_parsing": "should be a whole number",
    "float_type": "should be a number",
    "bool_type": "should be `true` or `false`",
    "string_type": "should be text",
    "path_type": "should be text",
    "model_type": "should be a section with keys of its own",
    "model_attributes_type": "should be a section with keys of its own",
    "dict_type": "should be a section with keys of its own",
}


def load(document: Document, params: type[Params]) -> Params:
    """Validate and return the sections of the file that `params` names. Raises Refusal with one line for each error.

    Sections that need torch for validation come last, and only where all others are valid: a typing error is reported before that slow
    import.
    """
    glance(document, params)
    return judged(document, *validate(document.data, params))


def glance(document: Document, params: type[Params]) -> Params:
    """Validate like `load`, but without torch: of a section that needs torch, check only `name` and leave the other keys unvalidated."""
    return judged(document, *validate(document.data, params, without_torch=True))


def judged(document: Document, value: Params | None, problems: list[Problem]) -> Params:
    """Return the value. Raises Refusal with all problems, including unknown section names."""
    unknown = [((name,), f"is not a section: {suggestion(name, SECTIONS)}") for name in document.data if name not in SECTIONS]
    if value is None or unknown:
        found = sorted((document.line(location), location, message) for location, message in without_echoes([*unknown, *problems]))
        raise Refusal("\n".join(f"{document.path}:{line}: {dotted(location)}: {message}" for line, location, message in found))
    return value


def from_data(data: Mapping[str, Any], params: type[Params], origin: str) -> Params:
    """Validate data that was parsed elsewhere, such as the metadata of a model file; `origin` names its source in a Refusal."""
    length = len(json.dumps(data, default=str))
    if length > MOST_BYTES:
        raise Refusal(f"{origin}: has parameters of {length} characters, more than {MOST_BYTES}: these cannot be parameters")
    value, problems = validate(data, params)
    if value is None:
        raise Refusal("\n".join(f"{origin}: {dotted(location)}: {message}" for location, message in problems))
    return value


def placed(document: Document, refusal: Refusal) -> Refusal:
    """Return the refusal with file and line added to each message that begins with a key of the document."""
    return Refusal("\n".join(place(document, line) for line in str(refusal).splitlines()))


def place(document: Document, text: str) -> str:
    key = KEY.match(text)
    location = tuple(key[1].split(".")) if key else ()
    return f"{document.path}:{document.line(location)}: {text}" if location and location[0] in SECTIONS else text


def dotted(location: Location) -> str:
    return ".".join(untrusted.shown(part, MOST_SHOWN) for part in location)


def validate(data: Mapping[str, Any], params: type[Params], *, without_torch: bool = False) -> tuple[Params | None, list[Problem]]:
    """Return the validated sections (None where there are problems) and the problems."""
    resolved, problems = resolve(params, data, without_torch=without_torch)
    chosen = {name: data[name] for name in params.model_fields if name in data}
    try:
        # validate as JSON: pydantic's strict mode then still accepts a list for a tuple and a string for a path
        value = resolved.model_validate_json(json.dumps(chosen, default=str))
    except ValidationError as error:
        problems += [explain(problem, resolved) for problem in error.errors()]
    return (None if problems else value), problems


def resolve(params: type[Params], data: Mapping[str, Any], *, without_torch: bool) -> tuple[type[Params], list[Problem]]:
    """Return `params` with each polymorphic section narrowed to the type that its `name` selects, and a problem for each unknown name."""
    fields: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, field in params.model_fields.items():
        section, kinds = data.get(name), kinds_of(name, field)
        if kinds is None or not isinstance(section, Mapping):
            continue
        known = section.get("name") in kinds.names
        fields[name] = (kinds.settings(section["name"]) if known and not (kinds.needs_torch and without_torch) else Any, ...)
        if not known:
            problems.append(unknown_kind(name, section, kinds))
    return narrowed(params, tuple(fields.items())), problems


@cache
def narrowed(params: type[Params], fields: tuple[tuple[str, Any], ...]) -> type[Params]:
    """Return `params` with other types of these fields. Cached, because pydantic takes several milliseconds to make a class."""
    return create_model(params.__name__, __base__=params, **dict(fields))


class Kinds(NamedTuple):
    """The types of a polymorphic section, whose `name` decides which other keys it has."""

    noun: str
    names: tuple[str, ...]
    settings: Callable[[str], type[BaseModel]]
    needs_torch: bool = False


def kinds_of(section: str, field: FieldInfo) -> Kinds | None:
    """Return the types of a section that is a registry family or a discriminated union; None for a section of one type."""
    family = next((item for item in field.metadata if isinstance(item, Family)), None)
    if family:
        return Kinds(family.noun, family.names, family.settings, family.needs_torch)
    if field.discriminator is None:
        return None
    members = {name: member for member in get_args(field.annotation) for name in get_args(member.model_fields["name"].annotation)}
    return Kinds(section, tuple(members), members.__getitem__)


def unknown_kind(name: str, section: Mapping[str, Any], kinds: Kinds) -> Problem:
    if "name" in section:
        return (name, "name"), f"there is no {kinds.noun} {shown(section['name'])}: {suggestion(section['name'], kinds.names)}"
    misspelt = get_close_matches("name", section, n=1, cutoff=NEAR)
    if misspelt:
        return (name, misspelt[0]), "is not a key here: did you mean `name`?"
    return (name, "name"), f"is missing: add `name:` to this section: known are {', '.join(kinds.names)}"


def explain(problem: ErrorDetails, resolved: type[BaseModel]) -> Problem:
    """Return the key's location, and pydantic's message in the terms of the YAML file."""
    location = problem["loc"]
    match problem["type"]:
        case "missing":
            into = "to this section" if len(location) > 1 else "and its keys"
            return location, f"is missing: add `{location[-1]}:` {into} (docs/parameters.md lists the parameters)"
        case "extra_forbidden":
            siblings = getattr(resolved.model_fields[str(location[0])].annotation, "model_fields", ())
            return location, f"is not a key here: {suggestion(location[-1], tuple(siblings))}"
        case "value_error":
            return location, problem["msg"].removeprefix("Value error, ")
    complaint = EXPECTED.get(problem["type"], problem["msg"].replace("Input should", "should"))
    return location, f"{complaint}, not {shown(problem['input'])}"


def without_echoes(problems: list[Problem]) -> list[Problem]:
    """Drop "is missing" for a key that is already suggested for a misspelt one, so that one mistake gives one line."""
    meant = {(*location[:-1], found[1]) for location, message in problems if (found := re.search(r"did you mean `(.+)`\?$", message))}
    return [(location, message) for location, message in problems if location not in meant or not message.startswith("is missing")]


def suggestion(name: object, known: tuple[str, ...]) -> str:
    close = get_close_matches(str(name), known, n=1, cutoff=NEAR)
    return f"did you mean `{close[0]}`?" if close else f"known are {', '.join(known)}"


def shown(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return untrusted.shown(text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + "...")
