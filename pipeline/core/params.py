"""Validate `params.yaml` into typed sections. All errors are reported at once, each with file, line, key and remedy."""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from pipeline.core import untrusted
from pipeline.core.refusal import Location, Problem, Refusal, rewording
from pipeline.core.registry import Registry
from pipeline.core.section import COMMON_KEYS, COMMON_MODELS, NONE, SECTIONS, SIMILARITY, Section, filled, moved, suggestion
from pipeline.core.yaml_document import MAX_BYTES, Document

Params = TypeVar("Params", bound=BaseModel)
MISSING = "is missing"
UPGRADE = "`python -m pipeline set --upgrade` adds it with the value that keeps earlier results"
"""The remedy for a key that older files lack."""
SUGGESTED = re.compile(r"(?:did you mean|write) `(?:\w+\.)?(\w+)`")
INPUT = re.compile("^(Input|String|Tuple) (?=should )")
MAX_SHOWN = 60
EXPECTED = {
    **dict.fromkeys(("int_type", "int_from_float", "int_parsing"), "should be a whole number"),
    "float_type": "should be a number",
    "tuple_type": "should be a list, such as [a, b]",
    "bool_type": "should be `true` or `false`",
    **dict.fromkeys(("string_type", "path_type"), "should be text"),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "should be a section with keys of its own"),
}


def load(document: Document, params: type[Params], *, sections_with_torch: Literal["last", "never", "together"] = "last") -> Params:
    """Validate the sections of `document`, the parsed `params.yaml`, that are fields of the class `params`. Return an object of this class.

    Raises Refusal with one line for each error. A section that is not in SECTIONS is an error, too. The validation of some sections, such
    as `model`, imports `torch`, which is slow. By default, these are validated only if all others are valid, so that a typing error is
    reported quickly. With `never`, only their key `name` is validated; with `together`, all sections are, so that all problems are reported.
    """
    if sections_with_torch == "last":
        load(document, params, sections_with_torch="never")
    value, problems = validate(document.data, params, without_torch=sections_with_torch == "never")
    unknown = unknown_sections(document.data)
    if value is None or unknown:
        raise refusal(document, without_echoes([*unknown, *problems]))
    return value


def refusal(document: Document, problems: Iterable[Problem]) -> Refusal:
    """Return the refusal for problems of keys in `document`, in the order of their lines."""
    return Refusal.of(sorted((with_line(document, each) for each in problems), key=lambda each: (each.line, each.location)))


def with_line(document: Document, problem: Problem) -> Problem:
    """Return the problem of a key in `document` with the file and the line of the key."""
    return replace(problem, file=str(document.path), line=document.line(problem.location))


def unknown_sections(data: Mapping[str, Any]) -> list[Problem]:
    """Return the problem of each top-level key of `data` that is not in SECTIONS."""
    return [Problem("is not a section", section_suggestion(name), (name,)) for name in data if name not in SECTIONS]


def section_suggestion(name: str) -> str:
    section, _, key = name.partition(".")
    if key and section in SECTIONS:
        return f"write `{key}:` in the section `{section}:`"
    return suggestion(name, SECTIONS, COMMON_KEYS)


def from_data(data: Mapping[str, Any], params: type[Params], origin: str) -> Params:
    """Validate data that was parsed elsewhere, such as the metadata of a model file. `origin` names the source of the data in messages.

    Raises Refusal if the data is invalid or has more than MAX_BYTES characters as JSON.
    """
    length = len(json.dumps(data, default=str))
    if length > MAX_BYTES:
        raise Refusal(
            f"{origin}: its parameters have {length} characters, more than {MAX_BYTES}: use a model file that this pipeline has written"
        )
    value, problems = validate(data, params)
    if value is None:
        raise Refusal.of(replace(problem, file=origin) for problem in problems)
    return value


def upgraded(data: Mapping[str, Any], params: type[BaseModel]) -> tuple[dict[str, Any], dict[Location, Any]]:
    """Add to `data`, the sections of an older file by name, the keys that its sections in `params` lack, where their classes state in `ADDED`
    the value that keeps the result, and remove those that have moved. Return the pair (all sections, added values by location). What else is
    missing stays missing.
    """
    content, added = dict(data), dict[Location, Any]()
    while found := {location: value for location, value in additions(content, params) if location not in added}:
        for location, value in found.items():
            content = with_value(content, location, value)
        added |= found
    for section, key in moved(added):
        content[section] = {name: value for name, value in content[section].items() if name != key}
    return content, added


def additions(data: Mapping[str, Any], params: type[BaseModel]) -> Iterator[tuple[Location, Any]]:
    """Yield the location and the value of each missing key with a value in `ADDED`. The keys of a section that is itself missing are left out."""
    resolved, _ = resolve(params, data, without_torch=False)
    missing = [problem["loc"] for problem in attempt(data, resolved)[1] if problem["type"] == "missing"]
    for *section, key in missing:
        values = added_keys(section_at(tuple(section), resolved))
        if key in values:
            with suppress(LookupError, TypeError):  # the key whose value is needed is missing, too
                yield (*section, key), filled(values[key], data)


def with_value(data: Any, location: Location, value: Any) -> Any:
    """Return a copy of `data`, which consists of mappings and lists, with `value` at `location`."""
    if not location:
        return value
    key, *rest = location
    copy: Any = dict(data) if isinstance(data, Mapping) else list(data)
    copy[key] = with_value(data[key] if rest else None, tuple(rest), value)
    return copy


def adding_lines(document: Document) -> AbstractContextManager[None]:
    """Within this context, add file and line to each problem of a Refusal that has a key of `params.yaml`, and no file yet."""
    return rewording(
        lambda problem: (
            with_line(document, problem) if problem.location[:1] in {(name,) for name in SECTIONS} and not problem.file else problem
        )
    )


def validate(data: Mapping[str, Any], params: type[Params], *, without_torch: bool = False) -> tuple[Params | None, list[Problem]]:
    """Validate `data`, the sections by name. Return the pair (validated sections, problems). If there are problems, the sections are None.

    With `without_torch`, a section whose validation would import torch is not validated, except for its key `name`.
    """
    resolved, problems = resolve(params, data, without_torch=without_torch)
    value, errors = attempt(data, resolved)
    problems += [explain(problem, resolved) for problem in errors]
    return (None if problems else value), problems


def attempt(data: Mapping[str, Any], params: type[Params]) -> tuple[Params | None, list[ErrorDetails]]:
    """Validate the sections of `data` that are fields of the class `params`. Return the pair (object of this class or None, errors)."""
    chosen = {name: data[name] for name in params.model_fields if name in data}
    try:
        # validate as JSON: pydantic's strict mode then still accepts a list for a tuple and a string for a path
        return params.model_validate_json(json.dumps(chosen, default=str)), []
    except ValidationError as error:
        return None, errors_of(error, data)


def errors_of(error: ValidationError, data: Any) -> list[ErrorDetails]:
    """Return one error for each wrong value in `data`. For a value of a union, pydantic has one for each form that the value does not have."""
    at = defaultdict[Location, list[ErrorDetails]](list)
    for each in error.errors():
        at[without_forms(each, data)].append(each)
    parents = {location[:depth] for location in at for depth in range(len(location))}  # a form has this list or section, with a wrong value
    return [joined(errors, location) for location, errors in at.items() if location not in parents]


def without_forms(error: ErrorDetails, data: Any) -> Location:
    """Return the location of an error in `data`, without the names that pydantic adds to it for the forms of a union."""
    location, value = list[str | int](), data
    for part in error["loc"]:
        try:  # `suppress` takes three times as long, for each of a hundred thousand wrong keys
            value = value[part]
        except (LookupError, TypeError):
            continue
        location.append(part)
    return (*location, *(error["loc"][-1:] if error["type"] == "missing" else ()))


def joined(errors: Sequence[ErrorDetails], location: Location) -> ErrorDetails:
    """Return the errors of one value as one: that of the form whose type the value has, or else what all forms expect."""
    first = next((each for each in errors if each["type"] not in (*EXPECTED, "literal_error")), None)
    if first or len(errors) == 1:
        return {**(first or errors[0]), "loc": location}
    *most, last = dict.fromkeys(expected(each).removeprefix("should be ") for each in errors)
    text = f"{', '.join(most).replace(' or ', ', ')} or {last}" if most else last
    return {**errors[0], "loc": location, "type": "union", "msg": f"should be {text}"}


def expected(error: ErrorDetails) -> str:
    """Return what an error says that a value should be."""
    text = INPUT.sub("", error["msg"]).replace("True or False", "true or false")
    return EXPECTED.get(error["type"], text.partition(" after validation")[0])


def resolve(params: type[Params], data: Mapping[str, Any], *, without_torch: bool) -> tuple[type[Params], list[Problem]]:
    """Return a subclass of `params` for the validation of `data`, and the problems found.

    Some sections, such as `model`, have variants. The key `name` of the section in `data` selects one variant, and the subclass gives the
    section the type of this variant. If `name` is missing or unknown, that is a problem, and the section gets the type Any. With
    `without_torch`, a section whose variants import torch gets the type Any, too.
    """
    fields: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, field in params.model_fields.items():
        section, types = data.get(name), section_types(name, field)
        if not isinstance(section, Mapping):
            continue
        if types is None:
            kind, found = resolve_lists(name, section, field, without_torch=without_torch)
        else:
            kind, found = resolve_variant((name,), section, types, without_torch=without_torch)
        if kind is not None:
            fields[name] = (kind, ...)
        problems += found
    return narrowed(params, tuple(fields.items())), problems


@cache
def narrowed(params: type[Params], fields: tuple[tuple[str, Any], ...]) -> type[Params]:
    """Return a subclass of `params` with other types for some fields. `fields` has pairs of a field's name and its new pydantic definition.

    The result is cached, because pydantic takes several milliseconds to create a class.
    """
    return create_model(params.__name__, __base__=params, **dict(fields))


class SectionTypes(NamedTuple):
    """The variants of a section such as `model`. The key `name` of the section selects a variant, which decides what other keys are valid.

    `names` are the names of the variants. `noun` is the word for a variant in messages. `settings(name)` returns the class that validates
    the section for the variant `name`. `needs_torch` is True if this class imports torch.
    """

    noun: str
    names: tuple[str, ...]
    settings: Callable[[str], type[BaseModel]]
    needs_torch: bool = False


def section_types(section: str, field: FieldInfo) -> SectionTypes | None:
    """Return the variants of the section with the name `section`, or None if it has none. `field` is the pydantic field of the section.

    A section has variants if `field` has a Registry, a package with one module for each variant, or if it is a discriminated union.
    """
    registry = next((item for item in field.metadata if isinstance(item, Registry)), None)
    if registry:
        return SectionTypes(registry.noun, registry.names, registry.settings, registry.needs_torch)
    if field.discriminator is None:
        return None
    members = {name: member for member in get_args(field.annotation) for name in get_args(member.model_fields["name"].annotation)}
    return SectionTypes(section, tuple(members), members.__getitem__)


def resolve_variant(at: Location, section: Mapping[str, Any], types: SectionTypes, *, without_torch: bool) -> tuple[Any, list[Problem]]:
    """Return the type of the section at the location `at`, which its key `name` selects among `types`, and the problems found, as `resolve` does."""
    known = section.get("name") in types.names
    kind = types.settings(section["name"]) if known and not (types.needs_torch and without_torch) else Any
    return kind, [] if known else [unknown_name(at, section, types)]


def resolve_lists(name: str, section: Mapping[str, Any], field: FieldInfo, *, without_torch: bool) -> tuple[Any, list[Problem]]:
    """Return the type of the section `name` without variants of its own, and the problems found, as `resolve` does. It is None if it is that of `field`.

    If `field` allows several forms of the section, it is the one with most of the section's keys, and then with the fewest others. In a list
    of sections with variants, each item gets the type that its key `name` selects.
    """
    forms = sections_in(field.annotation)
    keys = section.keys()
    form = min(forms, key=lambda kind: (len(keys - kind.model_fields.keys()), len(kind.model_fields.keys() - keys)), default=None)
    lists: dict[str, Any] = {}
    problems: list[Problem] = []
    for key, member in form.model_fields.items() if form else ():
        items, types = section.get(key), section_types(key, member)
        if types is None or not isinstance(items, list):
            continue
        kinds = [get_args(member.annotation)[0]] * len(items)
        for number, item in enumerate(items):
            if isinstance(item, Mapping):
                kinds[number], found = resolve_variant((name, key, number), item, types, without_torch=without_torch)
                problems += found
        lists[key] = (tuple[tuple(kinds)], ...)  # type: ignore[misc]  # a type that is made from the data
    if form and lists:
        return narrowed(form, tuple(lists.items())), problems
    return form if len(forms) > 1 else None, problems


def unknown_name(at: Location, section: Mapping[str, Any], types: SectionTypes) -> Problem:
    if "name" in section:
        chosen, common = section["name"], COMMON_MODELS if at == ("model",) else NONE
        return Problem(f"there is no {types.noun} {shown(chosen)}", suggestion(chosen, types.names, common), (*at, "name"))
    misspelled = get_close_matches("name", section, n=1, cutoff=SIMILARITY)
    if misspelled:
        return Problem("is not a key here", "did you mean `name`?", (*at, misspelled[0]))
    return Problem(MISSING, f"add `name:` to this section: choose one of {', '.join(types.names)}", (*at, "name"))


def explain(problem: ErrorDetails, resolved: type[BaseModel]) -> Problem:
    """Turn an error of pydantic into a problem in the terms of a YAML file.

    `resolved` is the class whose validation failed.
    """
    location = problem["loc"]
    match problem["type"]:
        case "missing":
            if location[-1] in added_keys(section_at(location[:-1], resolved)):
                return Problem(MISSING, UPGRADE, location)
            into = "to this section" if len(location) > 1 else "and its keys"
            line = "`seed: 1`" if location == ("seed",) else f"`{location[-1]}:` {into}"  # only `seed` is not in a section
            return Problem(MISSING, f"add {line} (docs/parameters.md lists the parameters)", location)
        case "extra_forbidden":
            siblings = keys_of(section_at(location[:-1], resolved))
            common = COMMON_KEYS if len(location) == 2 else NONE  # not in the items of a list
            return Problem("is not a key here", suggestion(location[-1], siblings, common), location)
        case "value_error":
            return Problem(problem["msg"].removeprefix("Value error, "), location=location)
    return Problem(f"{expected(problem)}, not {shown(problem['input'])}", location=location)


def section_at(location: Location, params: type[BaseModel]) -> Any:
    """Return the type of the section or of the item of a list at `location`, or None if it is unknown. `params` is the class of all sections."""
    section: Any = params
    for part in location:
        if isinstance(part, str):
            kinds = (kind for kind in (section, *get_args(section)) if part in getattr(kind, "model_fields", ()))
            section = next((kind.model_fields[part].annotation for kind in kinds), None)
        elif get_origin(section) is tuple and Ellipsis not in get_args(section):
            section = get_args(section)[part]
    return section


def added_keys(section: Any) -> dict[str, Any]:
    """Return the values in `ADDED` of a section by key. `section` is its type, as for `keys_of`."""
    return {key: value for kind in sections_in(section) for key, value in kind.inherited("ADDED").items()}


def sections_in(section: Any) -> list[type[Section]]:
    """Return the classes of sections in the type `section`: itself, or those that a type such as `X | None` contains."""
    return [kind for kind in (section, *get_args(section)) if isinstance(kind, type) and issubclass(kind, Section)]


def keys_of(section: Any) -> tuple[str, ...]:
    """Return the valid keys of a section. `section` is its type: a class, or a type that contains the class, such as `X | None`."""
    return tuple(key for kind in (section, *get_args(section)) for key in getattr(kind, "model_fields", ()))


def without_echoes(problems: list[Problem]) -> list[Problem]:
    """Return the problems without those that only repeat another problem, so that a misspelled key gives one message, not two.

    If a key is misspelled, the right key is missing, too. The problem of the first key suggests the right key, so the problem "is missing" of
    the right key is dropped.
    """
    suggested = {(*each.location[:-1], match[1]) for each in problems if (match := SUGGESTED.search(each.unplaced))}
    return [each for each in problems if each.location not in suggested or each.text != MISSING]


def shown(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return untrusted.shown(text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "...")
