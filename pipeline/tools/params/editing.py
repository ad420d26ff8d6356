"""Edits the text of `params.yaml`: assigns values to keys, and keeps comments, the order of keys and the notation of all other values."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from pipeline.core import params
from pipeline.core.environment import Paths
from pipeline.core.refusal import Location, Problem, Refusal, dotted
from pipeline.core.registry import SOURCES, USUAL_TASK
from pipeline.core.section import COMMON_KEYS, COMMON_MODELS, MOVED, SECTIONS, moved, suggestion
from pipeline.core.untrusted import shown
from pipeline.core.yaml_document import MAX_BYTES, Document, to_plain_data
from pipeline.tools.params import commented_yaml
from pipeline.tools.params.commented_yaml import on_one_line
from pipeline.tools.params.reference import STAGE_PARAMS, section_fields

GIVEN = Path("the value")
"""Stands for the name of the file in messages about a value that is not valid YAML."""
MAX_SHOWN = 80
Check = Callable[[Mapping[str, Any]], list[Problem]]
"""A function that returns the problems in the data of a file."""


@dataclass(frozen=True)
class Assignment:
    """An assignment `KEY=VALUE`. `given` is the user's text, `location` the parts of KEY, `written` the text of VALUE, and `value` its data."""

    given: str
    location: Location
    written: str
    value: Any

    @classmethod
    def parse(cls, given: str) -> "Assignment":
        """Parse an assignment such as `train.epochs=3`. Raises Refusal if it has no key or no `=`, or if VALUE is not valid YAML."""
        key, equals, written = given.partition("=")
        location = tuple(int(part) if part.isdecimal() else part for part in key.strip().split("."))
        if not equals or "" in location:
            raise Refusal(f"{shown(given, MAX_SHOWN)}: is not of the form KEY=VALUE: write for example train.epochs=3")
        if location[0] not in SECTIONS:
            raise Refusal(f"{shown(given, MAX_SHOWN)}: {shown(str(location[0]), MAX_SHOWN)} is not a section: {nearest(location)}")
        written = written.strip()
        try:
            (value,) = Document.of(f"value: {written}", GIVEN).data.values()
        except ValueError as error:  # a Refusal, or other keys in further lines
            reason = error.problems[0].unplaced if isinstance(error, Refusal) else "is not a single value"
            quoted = shown(json.dumps(written, ensure_ascii=False), MAX_SHOWN)
            raise Refusal(f"{shown(given, MAX_SHOWN)}: {reason}: if it is text, write it in quotes: '{key}={quoted}'") from None
        return cls(shown(given, MAX_SHOWN), location, written, value)


def nearest(location: Location) -> str:
    """Return a suggestion for a key that does not begin with a section: the same key in a section that has it, also in params.yaml only, such as a key
    of the model there; or the name of a section.
    """
    key, *more = location
    keys = {name: params.keys_of(field.annotation) for name, field in section_fields().items()}
    with suppress(Refusal):  # the caller reports a file that cannot be read
        written = Document.read(Paths().params).data.items()
        keys |= {name: (*keys.get(name, ()), *section) for name, section in written if isinstance(section, Mapping)}
    owner = None if more else next((name for name, members in keys.items() if key in members), None)
    return f"did you mean `{owner}.{key}`?" if owner else suggestion(key, SECTIONS, COMMON_KEYS)


def edited(text: str, assignments: Sequence[str]) -> str:
    """Return `text`, the text of `params.yaml`, after `assignments`, each of the form `KEY=VALUE`.

    VALUE is YAML, as in the file. The name of a member for a whole section, such as `model=mlp`, replaces the section by the member's
    recommended values; such assignments take effect before those of single keys. Comments, the order of keys, quotes and the notation of
    numbers stay; indentation and line breaks become those of the presets. If no value changes, `text` is returned as it is. Raises Refusal
    if `text` or an assignment is invalid, if a value to change has an anchor, or if the parameters would be invalid afterwards.
    """
    before = Document.of(text, Paths().params)
    parsed = [Assignment.parse(given) for given in assignments]
    content = commented_yaml.load(text, before.path)
    # whole sections first, and `source`, which decides the task, before `model`
    for assignment in sorted(parsed, key=lambda each: (len(each.location), SECTIONS.index(str(each.location[0])))):
        for location, value in replacements(assignment, content):
            assign(content, location, value, assignment.given)
    return written(content, before, text, parsed, problems)


def upgraded_text(text: str, path: Path, kinds: Iterable[type[BaseModel]], check: Check) -> tuple[str, dict[Location, Any]]:
    """Add to `text`, the text of the older parameter file or search file `path`, the keys that it lacks, with the values in `Section.ADDED`.
    Remove those that have moved.

    Return the pair (text, added values by location). `kinds` are the classes of all sections. Everything else stays as in `edited`. Raises
    Refusal if `check` then finds problems, for example because a key was removed since, or if a section to change has an anchor.
    """
    before, content, added = Document.of(text, path), commented_yaml.load(text, path), dict[Location, Any]()
    for kind in kinds:
        added |= params.upgraded(before.data, kind)[1]
    for location, value in added.items():
        new = commented_yaml.load(f"value: {on_one_line(value)}")["value"]
        assign(content, location, new, f"{path}:{before.line(location)}: {dotted(location)}")
        if isinstance(new, CommentedMap):  # a section, with a blank line above it, as in the presets
            new.fa.set_block_style()
            content.yaml_set_comment_before_after_key(location[0], before="\n")
    for section, key in moved(added):
        new_section, _, new_key = MOVED[f"{section}.{key}"].partition(".")
        commented_yaml.annotate(content[new_section], new_key, beside=commented_yaml.remove(content[section], key))
    return written(content, before, text, [], check), added


def written(content: Any, before: Document, text: str, assignments: Sequence[Assignment], check: Check) -> str:
    """Return the text of `content`, the changed values of the file `before`, or `text`, the text before, if no value differs.

    Raises Refusal if the text is too large or does not have exactly these values, or if `check` finds problems in them.
    """
    result = commented_yaml.dump(content)
    after = Document.of(result, before.path)
    if len(result.encode()) > MAX_BYTES:
        raise Refusal(f"{before.path}: would be larger than {MAX_BYTES} bytes: write shorter values")
    if found := check(after.data):
        raise Refusal.of(dict.fromkeys(described(problem, before, assignments) for problem in found))
    if after.data != to_plain_data(content):
        raise Refusal(f"{before.path}: could not be written again without changing another value: edit the file by hand")
    if after.data == before.data:
        return text
    return result.replace("\n", "\r\n") if "\r\n" in text else result


def replacements(assignment: Assignment, content: Mapping[str, Any]) -> Iterator[tuple[Location, Any]]:
    """Yield the changes that `assignment` makes, as pairs (location, value). `content` has the parameters before the change."""
    section, *keys = assignment.location
    types = types_of(str(section))
    if keys or types is None or not isinstance(assignment.value, str):
        yield assignment.location, commented_yaml.load(f"value: {assignment.written}")["value"]
        return
    values = commented_yaml.load(on_one_line(recommended(assignment, types, task_of(content))))
    values.fa.set_block_style()
    present = content.get(str(section))
    if isinstance(present, Mapping) and present.keys() == values.keys() and present["name"] == values["name"]:
        for key, value in values.items():  # key by key, so that comments stay
            if value != present[key]:
                yield (section, key), value
    else:
        yield (section,), values


def types_of(section: str) -> params.SectionTypes | None:
    """Return the members from which the key `name` of the section chooses; None if the section has no key `name`."""
    return params.section_types(section, section_fields()[section])


def task_of(data: Mapping[str, Any]) -> str:
    """Return the task of the dataset that the parameters `data` name; USUAL_TASK, the task of most datasets, if they name none."""
    source = data.get("source")
    name = source.get("name") if isinstance(source, Mapping) else None
    return str(SOURCES.settings(name).task_of(source)) if name in SOURCES.names else USUAL_TASK


def recommended(assignment: Assignment, types: params.SectionTypes, task: str) -> dict[str, Any]:
    """Return the whole section of the member that `assignment` names, with its recommended values, in the order of its keys.

    Raises Refusal if there is no such member, or if it does not state a value for each of its keys.
    """
    section, name = str(assignment.location[0]), assignment.value
    if name not in types.names:
        problem = params.unknown_name((section,), {"name": name}, types)
        if section == "model" and re.search(r"\d|[-/]", name) and name not in COMMON_MODELS:  # as pretrained models are called
            library = "transformers" if re.search(r"[-/]|^gpt", name) else "timm"
            problem = replace(problem, remedy=f"for a pretrained model write model={library}:{name}; {problem.remedy}")
        raise Refusal(f"{assignment.given}: {problem.unplaced}")
    settings = types.settings(name)
    values: dict[str, Any] = {"name": name, **settings.recommended(name=name, task=task)}  # type: ignore[attr-defined]
    if missing := [key for key in settings.model_fields if key not in values]:
        file = settings.__module__.replace(".", "/") + ".py"
        to_class = f"add them to the class {settings.__name__} in {file}, as `RECOMMENDED = {{{json.dumps(missing[0])}: ...}}`"
        remedy = f"{to_class}, or give all keys: '{section}={{name: {name}, {missing[0]}: ...}}'"
        raise Refusal(f"{assignment.given}: {name} has no recommended value for {', '.join(missing)}: {remedy}")
    return {key: values[key] for key in settings.model_fields}


def assign(content: CommentedMap, location: Location, value: Any, given: str) -> None:
    """Put `value` at `location` of `content`. Keys that are missing are added.

    Raises Refusal if a part of `location` does not exist in a list or a single value, or if a value on the path has an anchor (`&name`),
    because an alias (`*name`) may use the same value elsewhere. The message begins with `given`, the user's assignment.
    """
    container: Any = content
    for depth, part in enumerate(location):
        is_list = isinstance(container, CommentedSeq)
        if not isinstance(container, CommentedMap) and not (is_list and isinstance(part, int) and part < len(container)):
            parent = f"a list of {len(container)}" if is_list else on_one_line(container)
            problem = f"there is no `{shown(str(part), MAX_SHOWN)}`, because its parent is {parent}"
            raise Refusal(f"{given}: {problem}: assign to the parent first")
        key = part if is_list else str(part)
        present = container[key] if is_list else container.get(key)
        if getattr(getattr(present, "anchor", None), "value", None):
            problem = f"{dotted(location[: depth + 1])} has the anchor `&{present.anchor.value}` in {Paths().params}"
            raise Refusal(f"{given}: {problem}: remove the anchor, or edit the file")
        if depth == len(location) - 1:
            commented_yaml.replace(container, key, value)
        elif present is None:
            container[key] = CommentedMap()
        container = container[key]


def problems(data: Mapping[str, Any]) -> list[Problem]:
    """Return the problems in `data`, the parameters of all stages.

    Sections that need torch are validated only if all others are valid, or if they lack keys that were added since the file was written.
    """
    unknown = params.unknown_sections(data)
    for without_torch in (True, False):
        found = [problem for kind in STAGE_PARAMS.values() for problem in params.validate(data, kind, without_torch=without_torch)[1]]
        is_older = any(problem.remedy == params.UPGRADE for problem in found)  # name what else the file lacks, too
        if (unknown or found) and not (is_older and without_torch):
            return list(dict.fromkeys(params.without_echoes([*unknown, *found])))
    return []


def described(problem: Problem, before: Document, assignments: Sequence[Assignment]) -> Problem:
    """Return the problem with the assignment that caused it or, if none did, with the line in `before`."""
    location = problem.location
    for assignment in sorted(assignments, key=lambda each: -len(each.location)):
        section, *keys = assignment.location
        if keys == ["name"] and location[0] == section and location[1:] != ("name",):  # its keys are those of another member
            remedy = f"write `{section}={assignment.written}`, which replaces all of them"
            return Problem(f"{assignment.written} has other keys", remedy, file=assignment.given)
        common = min(len(location), len(assignment.location))
        if location[:common] == assignment.location[:common]:
            return replace(problem, file=assignment.given, location=() if location == assignment.location else location)
    return params.with_line(before, problem)


def changes(before: str, after: str) -> list[str]:
    """Return one line for each key whose value differs between two texts of params.yaml, such as `train.epochs: 30 -> 3`."""
    was, becomes = (Document.of(text, Paths().params).data for text in (before, after))
    lines = []
    for section in [*becomes, *(name for name in was if name not in becomes)]:
        old, new = was.get(section), becomes.get(section)
        if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
            old, new, prefix = {section: old}, {section: new}, ""
        else:
            prefix = f"{section}."
        changed = [(key, on_one_line(old[key]), value) for key, value in new.items() if old.get(key, value) != value]
        lines += [f"{prefix}{key}: {was_written} -> {on_one_line(value)}" for key, was_written, value in changed]
        lines += [f"{prefix}{key}: {on_one_line(value)} is added" for key, value in new.items() if key not in old]
        lines += [f"{prefix}{key}: is removed" for key in old if key not in new]
    return lines
