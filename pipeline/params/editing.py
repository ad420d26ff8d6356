"""Edits the text of `params.yaml`: assigns values to keys, and keeps comments, order and every other line as they are."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, SequenceNode

from pipeline.io.untrusted import shown
from pipeline.params.load import Problem, SectionTypes, dotted, section_types, suggestion, unknown_name, validate, without_echoes
from pipeline.params.section import SECTIONS
from pipeline.params.stages import STAGE_PARAMS
from pipeline.params.yaml_document import MAX_BYTES, Document, Location, parts_of
from pipeline.paths import Paths
from pipeline.refusal import Refusal
from pipeline.registry import SOURCES

GIVEN = Path("the value")
"""Takes the place of a file's name in the messages about a value that is not valid YAML."""
LINE = re.compile(rf"^{GIVEN}:\d+: ")
PLAIN = re.compile(r"[A-Za-z][\w./-]*", re.ASCII)
WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
"""Words that YAML 1.2 or 1.1 reads as something else than text."""
MAX_SHOWN = 80
NEWLINE = "\n"
INDENT = 2


@dataclass(frozen=True)
class Assignment:
    """`KEY=VALUE`, as the user has `given` it. `written` is the text of VALUE, and `value` the data that it stands for as YAML."""

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
            reason = LINE.sub("", str(error)) if isinstance(error, Refusal) else "is not a single value"
            quoted = shown(json.dumps(written, ensure_ascii=False), MAX_SHOWN)
            raise Refusal(f"{shown(given, MAX_SHOWN)}: {reason}: if it is text, write it in quotes: '{key}={quoted}'") from None
        return cls(shown(given, MAX_SHOWN), location, written, value)

    @property
    def rank(self) -> tuple[int, int]:
        """Return the place in the order of assignments: whole sections first, and `source`, which decides the task, before `model`."""
        return len(self.location), SECTIONS.index(str(self.location[0]))


def nearest(location: Location) -> str:
    """Return a suggestion for a key of which the first part is no section: the same key in a section that has it, or a section's name."""
    owners = [section for params in STAGE_PARAMS.values() for section, field in params.model_fields.items() if owns(field, location[-1])]
    return f"did you mean `{owners[0]}.{location[-1]}`?" if owners and len(location) == 1 else suggestion(location[0], SECTIONS)


def owns(field: Any, key: object) -> bool:
    return any(key in getattr(kind, "model_fields", ()) for kind in (field.annotation, *getattr(field.annotation, "__args__", ())))


def edited(text: str, assignments: Sequence[str]) -> str:
    """Return `text`, the text of `params.yaml`, after `assignments`, each of the form `KEY=VALUE`.

    VALUE is YAML, as in the file. The name of a member for a whole section, such as `model=mlp`, replaces the section by the member's
    recommended values; such assignments take effect before those of single keys. All lines that are not assigned to stay as they are, byte
    by byte. Raises Refusal if `text` or an assignment is invalid, or if the parameters would be invalid afterwards.
    """
    path = Paths().params
    before = document = Document.of(text, path)
    parsed = [Assignment.parse(given) for given in assignments]
    for assignment in sorted(parsed, key=lambda assignment: assignment.rank):
        for location, value, written in replacements(assignment, document.data):
            text = put(text, document, location, value, written, assignment.given)
            document = Document.of(text, path)
    if len(text.encode()) > MAX_BYTES:
        raise Refusal(f"{path}: would be larger than {MAX_BYTES} bytes: write shorter values")
    if found := problems(document.data):
        raise Refusal("\n".join(dict.fromkeys(describe(problem, before, parsed) for problem in found)))
    return text


def replacements(assignment: Assignment, data: Mapping[str, Any]) -> Iterator[tuple[Location, Any, str | None]]:
    """Yield what to write: triples (location, value, text of the value or None). `data` are the present parameters."""
    section, *keys = assignment.location
    types = types_of(str(section))
    if keys or types is None or not isinstance(assignment.value, str):
        yield assignment.location, assignment.value, assignment.written
        return
    values = recommended(assignment, types, task_of(data))
    present = data.get(str(section))
    if isinstance(present, Mapping) and [*present] == [*values] and present["name"] == values["name"]:
        for key, value in values.items():  # key by key, so that comments stay
            if value != present[key]:
                yield (section, key), value, None
    else:
        yield (section,), values, None


def types_of(section: str) -> SectionTypes | None:
    """Return the members of the family among which the key `name` of the section chooses, or None if the section has no such key."""
    return next(section_types(section, params.model_fields[section]) for params in STAGE_PARAMS.values() if section in params.model_fields)


def task_of(data: Mapping[str, Any]) -> str:
    """Return the task of the dataset in `data`, the present parameters. If no dataset is named there, return that of most datasets."""
    source = data.get("source")
    name = source.get("name") if isinstance(source, Mapping) else None
    return str(SOURCES.settings(name).task) if name in SOURCES.names else "classification"


def recommended(assignment: Assignment, types: SectionTypes, task: str) -> dict[str, Any]:
    """Return the whole section of the member that `assignment` names, with its recommended values, in the order of its keys.

    Raises Refusal if there is no such member, or if it does not state a value for each of its keys.
    """
    section, name = str(assignment.location[0]), assignment.value
    if name not in types.names:
        raise Refusal(f"{assignment.given}: {unknown_name(section, {'name': name}, types)[1]}")
    settings = types.settings(name)
    values: dict[str, Any] = {"name": name, **settings.recommended(name=name, task=task)}  # type: ignore[attr-defined]
    if missing := [key for key in settings.model_fields if key not in values]:
        file = settings.__module__.replace(".", "/") + ".py"
        raise Refusal(
            f"{assignment.given}: {name} has no recommended value of {', '.join(missing)}: add them to the class {settings.__name__} in {file}, "
            f"as `RECOMMENDED = {{{json.dumps(missing[0])}: ...}}`, or give all keys: '{section}={{name: {name}, {missing[0]}: ...}}'"
        )
    return {key: values[key] for key in settings.model_fields}


def put(text: str, document: Document, location: Location, value: Any, written: str | None, given: str) -> str:
    """Return `text` with `value` at `location`. `document` is the parsed text, and `written` a text of the value that is preferred.

    Raises Refusal, which names the assignment that was `given`, if no text could be made that differs in this value only.
    """
    intended = json.dumps(replaced(document.data, location, value, given), default=str)
    as_written = [written] if written and not {"\n", "#"} & {*written} else []
    for inline in (*as_written, on_one_line(value)):
        text_with_value = spliced(text, document.root, location, inline, value if written is None else None)
        try:
            if json.dumps(Document.of(text_with_value, document.path).data, default=str) == intended:
                return text_with_value
        except Refusal:
            continue
    raise Refusal(
        f"{given}: {document.path}:{document.line(location)}: is written with an anchor, an alias or a tag: change it there by hand"
    )


def replaced(data: Any, location: Location, value: Any, given: str) -> Any:
    """Return a copy of `data`, parsed YAML, with `value` at `location`. Raises Refusal if a part of the location has no keys."""
    if not location:
        return value
    first, *rest = location
    if isinstance(data, Mapping):
        return {**data, str(first): replaced(data.get(str(first), {}), tuple(rest), value, given)}
    if isinstance(data, list) and isinstance(first, int) and first < len(data):
        return [*data[:first], replaced(data[first], tuple(rest), value, given), *data[first + 1 :]]
    what = f"a list of {len(data)}" if isinstance(data, list) else on_one_line(data)
    raise Refusal(f"{given}: there is no `{shown(str(first), MAX_SHOWN)}`, because what should have it is {what}: assign to that first")


def spliced(text: str, root: Node, location: Location, inline: str, section: Any) -> str:
    """Return `text` with another value at `location`, or with the key added if it is missing. `root` is the root of the parsed text.

    `inline` is the value on one line. `section` is the value again, if it should be written as a block when it is a mapping.
    """
    parent: Any = None
    key: Any = None
    value: Any = root
    for depth, part in enumerate(location):
        parent = value
        if isinstance(parent, SequenceNode):
            key, value = None, parent.value[int(part)]
            continue
        pairs = parent.value if isinstance(parent, MappingNode) else []
        key, value = next((pair for pair in reversed(pairs) if pair[0].value == str(part)), (None, None))
        if value is None:
            return added(text, parent, ".".join(map(str, location[depth:])), inline)
    if key is None or (isinstance(parent, CollectionNode) and parent.flow_style):
        return text[: value.start_mark.index] + inline + text[end_of(text, value) :]
    if isinstance(section, Mapping) and not (isinstance(value, CollectionNode) and value.flow_style):
        return with_block(text, key, value, section)
    return with_line(text, key, value, inline)


def with_line(text: str, key: Node, value: Node, inline: str) -> str:
    """Return `text` with `inline` in place of the value of a key. Comments beside the key or the value stay."""
    begin, end = int(value.start_mark.index), end_of(text, value)
    colon = text.index(":", key.end_mark.index) + 1
    if is_block(value):
        return f"{text[:colon]} {inline}{text[colon : text.rfind(NEWLINE, 0, begin)].rstrip()}{text[end:]}"
    return f"{text[:begin]}{inline}{text[end:]}" if end > begin else f"{text[:colon]} {inline}{text[colon:]}"


def with_block(text: str, key: Node, value: Node, section: Mapping[str, Any]) -> str:
    """Return `text` with the keys of `section`, each on a line, in place of the value of a key. Comments beside the key stay."""
    begin, end = int(value.start_mark.index), end_of(text, value)
    indent = " " * (int(key.start_mark.column) + INDENT)
    lines = line_end(text).join(f"{indent}{name}: {on_one_line(item)}" for name, item in section.items())
    if is_block(value):
        return text[: text.rfind(NEWLINE, 0, begin) + 1] + lines + text[end:]
    colon, rest = text.index(":", key.end_mark.index) + 1, end_of_line(text, end)
    return text[:colon] + text[end:rest] + line_end(text) + lines + text[rest:]


def is_block(node: Node) -> bool:
    """Return True for a mapping or list with an item on each line, and False for one in brackets or a single value."""
    return isinstance(node, CollectionNode) and not node.flow_style


def added(text: str, parent: Node, key: str, inline: str) -> str:
    """Return `text` with a new key at the end of `parent`. If `parent` is no mapping, return `text`."""
    if not isinstance(parent, MappingNode):
        return text
    end = end_of(text, parent)
    if parent.flow_style:
        return text[: end - 1] + (", " if parent.value else "") + f"{key}: {inline}" + text[end - 1 :]
    rest = end_of_line(text, end)
    return text[:rest] + line_end(text) + " " * int(parent.start_mark.column) + f"{key}: {inline}" + text[rest:]


def end_of(text: str, node: Node) -> int:
    """Return the index after the last character of `node`. ruamel counts the comments and blank lines after a block as part of it."""
    while isinstance(node, CollectionNode) and not node.flow_style and node.value:
        node = parts_of(node)[-1]
    begin = int(node.start_mark.index)
    return begin + len(text[begin : node.end_mark.index].rstrip())


def end_of_line(text: str, index: int) -> int:
    end = text.find(NEWLINE, index)
    end = len(text) if end < 0 else end
    return end - 1 if text[end - 1 : end] == "\r" else end


def line_end(text: str) -> str:
    return f"\r{NEWLINE}" if f"\r{NEWLINE}" in text else NEWLINE


def on_one_line(value: Any) -> str:
    """Return a value as YAML on one line. Text that cannot be mistaken for something else is written without quotes."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{on_one_line(key)}: {on_one_line(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(on_one_line, value)) + "]"
    if isinstance(value, float):
        return repr(value).replace("e-0", "e-")
    is_plain = isinstance(value, str) and PLAIN.fullmatch(value) and value.lower() not in WORDS
    return str(value) if is_plain else json.dumps(value, ensure_ascii=False)


def problems(data: Mapping[str, Any]) -> list[Problem]:
    """Return what is invalid in `data`, the parameters of all stages. Sections that need torch are validated only if all others are valid."""
    unknown = [((name,), f"is not a section: {suggestion(name, SECTIONS)}") for name in data if name not in SECTIONS]
    for without_torch in (True, False):
        found = [problem for params in STAGE_PARAMS.values() for problem in validate(data, params, without_torch=without_torch)[1]]
        if unknown or found:
            return list(dict.fromkeys(without_echoes([*unknown, *found])))
    return []


def describe(problem: Problem, before: Document, assignments: Sequence[Assignment]) -> str:
    """Return the message of a problem: with the assignment that has caused it, or else with the line of the file `before` the edit."""
    location, message = problem
    for assignment in assignments:
        section, *keys = assignment.location
        if keys == ["name"] and location[0] == section and location[1:] != ("name",):  # its keys are those of another member
            return f"{assignment.given}: {assignment.written} has other keys: write `{section}={assignment.written}`, which replaces all of them"
        common = min(len(location), len(assignment.location))
        if location[:common] == assignment.location[:common]:
            key = "" if location == assignment.location else f"{dotted(location)}: "
            return f"{assignment.given}: {key}{message}"
    return f"{before.path}:{before.line(location)}: {dotted(location)}: {message}"


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return one line for each key whose value differs between two versions of the parameters, such as `train.epochs: 30 -> 3`.

    A section that has other keys, or another member by its key `name`, is one line.
    """
    lines = []
    for section in [*after, *(name for name in before if name not in after)]:
        old, new = before.get(section), after.get(section)
        if isinstance(old, Mapping) and isinstance(new, Mapping) and [*old] == [*new] and old.get("name") == new.get("name"):
            pairs = {f"{section}.{key}": (old[key], new[key]) for key in new}
        else:
            pairs = {section: (old, new)}
        lines += [f"{key}: {on_one_line(one)} -> {on_one_line(other)}" for key, (one, other) in pairs.items() if one != other]
    return lines
