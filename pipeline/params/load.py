"""From `params.yaml` to typed sections: everything that is wrong is said at once, with file, line, key and remedy."""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError, create_model
from pydantic_core import ErrorDetails

from pipeline.family import Family
from pipeline.params.document import Document, Location
from pipeline.params.evaluate import EvaluateParams
from pipeline.params.prepare import PrepareParams
from pipeline.params.train import TrainParams
from pipeline.refusal import Refusal

Params = TypeVar("Params", bound=BaseModel)
STAGE_PARAMS: tuple[type[BaseModel], ...] = (PrepareParams, TrainParams, EvaluateParams)
SECTIONS = tuple(dict.fromkeys(name for params in STAGE_PARAMS for name in params.model_fields))
MOST_SHOWN = 60


def load(path: Path, params: type[Params]) -> Params:
    """The sections of the file that `params` names. Raises Refusal with one line for each thing that is wrong."""
    document = Document.read(path)
    value, problems = validate(document.data, params)
    unknown = [((name,), f"is not a section: {suggestion(name, SECTIONS)}") for name in document.data if name not in SECTIONS]
    if value is None or unknown:
        raise Refusal("\n".join(describe(document, *problem) for problem in (*unknown, *problems)))
    return value


def from_data(data: Mapping[str, Any], params: type[Params], origin: str) -> Params:
    """The same from data that was parsed elsewhere, such as the metadata of a model file, which `origin` names."""
    value, problems = validate(data, params)
    if value is None:
        raise Refusal("\n".join(f"{origin}: {dotted(location)}: {message}" for location, message in problems))
    return value


def describe(document: Document, location: Location, message: str) -> str:
    return f"{document.path}:{document.line(location)}: {dotted(location)}: {message}"


def dotted(location: Location) -> str:
    return ".".join(str(part) for part in location)


def validate(data: Mapping[str, Any], params: type[Params]) -> tuple[Params | None, list[tuple[Location, str]]]:
    """Sections as `params`, or what is wrong with them."""
    resolved, problems = resolve(params, data)
    chosen = {name: data[name] for name in params.model_fields if name in data}
    try:
        # through JSON, in which strict types still take a list for a tuple and a string for a path
        value = resolved.model_validate_json(json.dumps(chosen, default=str))
    except ValidationError as error:
        problems += [explain(problem, data) for problem in error.errors()]
    return (None if problems else value), problems


def resolve(params: type[Params], data: Mapping[str, Any]) -> tuple[type[Params], list[tuple[Location, str]]]:
    """`params` with each open section typed by the module that its `name` chooses; an unknown name is a problem."""
    fields: dict[str, Any] = {}
    problems: list[tuple[Location, str]] = []
    for name, field in params.model_fields.items():
        family = next((item for item in field.metadata if isinstance(item, Family)), None)
        section = data.get(name)
        if family is None or not isinstance(section, Mapping) or "name" not in section:
            continue
        if section["name"] in family.names:
            fields[name] = (family.settings(section["name"]), ...)
        else:
            fields[name] = (Any, ...)
            problems.append(((name, "name"), f"there is no {family.noun} {section['name']!r}: {suggestion(section['name'], family.names)}"))
    return create_model(params.__name__, __base__=params, **fields), problems


def explain(problem: ErrorDetails, data: Mapping[str, Any]) -> tuple[Location, str]:
    """Where the key stands in the file, and pydantic's complaint in the words of the file."""
    location = in_file(problem["loc"], data)
    match problem["type"]:
        case "missing":
            return location, f"is missing: add `{location[-1]}:` here (README.md has the table of parameters)"
        case "extra_forbidden":
            return location, f"is not a key here: {suggestion(str(location[-1]), siblings(problem, data))}"
        case "union_tag_invalid" | "union_tag_not_found":
            expected = problem.get("ctx", {}).get("expected_tags", "")
            return (*location, "name"), f"should be one of {expected}"
        case "value_error":
            return location, problem["msg"].removeprefix("Value error, ")
    complaint = problem["msg"].removeprefix("Input ").replace("Input should", "should")
    return location, f"{complaint}, not {shown(problem['input'])}"


def in_file(location: Location, data: Any) -> Location:
    """Pydantic's location without the tags of unions, which are no keys of the file."""
    path: list[str | int] = []
    for part in location:
        if isinstance(data, Mapping) and part not in data and part == data.get("name"):
            continue
        path.append(part)
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            data = None
    return tuple(path)


def siblings(problem: ErrorDetails, data: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys that are known where an unknown one stands."""
    section = str(problem["loc"][0])
    fields: set[str] = set()
    for params in STAGE_PARAMS:
        if section in params.model_fields:
            resolved, _ = resolve(params, data)
            fields |= keys(resolved.model_fields[section].annotation, data.get(section))
    return tuple(sorted(fields))


def keys(annotation: Any, section: Any) -> set[str]:
    """Field names of a section's type; of a union, those of the member that its `name` chooses."""
    models = [member for member in get_args(annotation) or (annotation,) if hasattr(member, "model_fields")]
    name = section.get("name") if isinstance(section, Mapping) else None
    chosen = [model for model in models if len(models) > 1 and name in get_args(model.model_fields["name"].annotation)]
    return {field for model in chosen or models for field in model.model_fields}


def suggestion(name: object, known: tuple[str, ...]) -> str:
    close = get_close_matches(str(name), known, n=1)
    return f"did you mean `{close[0]}`?" if close else f"known are {', '.join(known)}"


def shown(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + "..."
