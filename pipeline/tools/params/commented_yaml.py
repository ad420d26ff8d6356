"""YAML that keeps its comments, the order of its keys and the notation of its numbers when a value is replaced."""

import io
import json
import re
from collections.abc import Mapping
from itertools import zip_longest
from math import isfinite
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import CommentMark
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import RoundTripRepresenter
from ruamel.yaml.scalarfloat import ScalarFloat
from ruamel.yaml.tokens import CommentToken

from pipeline.core.refusal import MAX_SHOWN, Refusal
from pipeline.core.untrusted import shown
from pipeline.core.yaml_document import MAX_BYTES

COMMENT = re.compile("#.*")
PLAIN = re.compile(r"[A-Za-z][\w./-]*", re.ASCII)
WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
"""Words that YAML 1.1 or 1.2 does not read as text."""


def load(text: str, path: Path | None = None) -> Any:
    """Parse YAML, the text of the file `path`, into values that keep their comments and notation.

    Raises Refusal if ruamel cannot keep a comment of the file.
    """
    text = text.replace("\r\n", "\n")
    try:
        content = round_trip().load(text)
    except NotImplementedError:  # "overlap in comment", at `key:  # comment`, a value on the next line, and an empty line
        problem = "has a comment between a key and its value, where it would be lost"
        raise Refusal(problem, remedy="write the value on the line of its key", file=str(path or "")) from None
    if path and len(before := comments_in(text)) > len(after := comments_in(dump(content))):
        line, lost = next(one for one, other in zip_longest(before, after) if other is None or one[1] != other[1])
        marker = re.search(r"^(---|\.\.\.)(?=\s|$)", text, re.MULTILINE)
        remedy = f"remove the line {marker[1]}" if marker else "move it to a line of its own above the key"
        raise Refusal(f"the comment {shown(lost, MAX_SHOWN)} would be lost: {remedy}", file=str(path), line=line)
    return content


def comments_in(text: str) -> list[tuple[int, str]]:
    """Return the line and the text of each comment in YAML: what stands between its tokens, and is no blank."""
    found, end = list[tuple[int, str]](), 0
    for token in YAML(typ="safe", pure=True).scan(text):
        between = text[end : token.start_mark.index]
        found += [(text.count("\n", 0, end + match.start()) + 1, match[0].rstrip()) for match in COMMENT.finditer(between)]
        end = max(end, token.end_mark.index)
    return found


def dump(content: Any) -> str:
    """Return the YAML of values that `load` has parsed."""
    stream = io.StringIO()
    round_trip().dump(content, stream)
    return stream.getvalue()


def round_trip() -> YAML:
    """Return ruamel's parser and writer that keeps comments. A file of `presets/` that is read and written is byte-identical."""
    yaml = YAML()
    yaml.Representer = Representer
    yaml.preserve_quotes = True
    yaml.width = MAX_BYTES  # the largest length of a line, so that no line is broken
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


class Representer(RoundTripRepresenter):
    """Writes values as text. It is a subclass because ruamel registers functions for a whole class, and DVC uses `RoundTripRepresenter`."""

    def represent_null(self, _: None) -> ScalarNode:
        """Write `null`; by default, ruamel writes nothing."""
        return self.represent_scalar("tag:yaml.org,2002:null", "null")

    def represent_float_exactly(self, number: ScalarFloat) -> ScalarNode:
        """Write a float as it was read, or else with all digits: ruamel loses the last one of a number such as 7.887233511355132e-10.

        A number that is too large for a float, such as 1e400, is written as `.inf`, which every parameter then refuses.
        """
        node = self.represent_scalar_float(number)
        if isfinite(number) and float(node.value) != number:
            node.value = repr(float(number))
        return node


Representer.add_representer(type(None), Representer.represent_null)
Representer.add_representer(ScalarFloat, Representer.represent_float_exactly)


def replace(container: Any, key: Any, value: Any) -> None:
    """Set `container[key]`; the key may be new. Comments and blank lines below the old value stay below the new one."""
    is_new = isinstance(container, CommentedMap) and key not in container
    comments, position = comments_after(container, next(reversed(container), None) if is_new else key)
    beside, _, below = comments[position].value.partition("\n") if comments[position] else ("", "", "")
    comments[position] = comment(f"{beside}\n") if beside else None
    container[key] = value
    annotate(container, key, below=below)


def remove(container: CommentedMap, key: str) -> str:
    """Remove `container[key]`, and return the comment beside it.

    Comments and blank lines below it stay below the key before it. If it is the first key, they are returned, too.
    """
    comments, position = comments_after(container, key)
    text = comments[position].value if comments[position] else ""
    beside, _, below = text.partition("\n")
    keys = [*container]
    del container[key]
    container.ca.items.pop(key, None)
    if keys[0] == key:
        return text.removesuffix("\n")
    annotate(container, keys[keys.index(key) - 1], below=below)
    return beside


def annotate(container: Any, key: Any, *, beside: str = "", below: str = "") -> None:
    """Add a comment beside `container[key]`, which has none, and lines below its other comments."""
    if beside or below:
        comments, position = comments_after(container, key)
        comments[position] = comment(beside + (comments[position].value if comments[position] else "\n") + below)


def comments_after(container: Any, key: Any) -> tuple[list[Any], int]:
    """Return the list in which ruamel keeps the comments after the last line of `container[key]`, and the index in this list."""
    value = container.get(key) if isinstance(container, CommentedMap) else container[key]
    while isinstance(value, CommentedMap | CommentedSeq) and value and not value.fa.flow_style():
        container, key = value, next(reversed(value)) if isinstance(value, CommentedMap) else len(value) - 1
        value = container[key]
    return container.ca.items.setdefault(key, [None] * 4), 2 if isinstance(container, CommentedMap) else 0


def comment(text: str) -> CommentToken:
    return CommentToken(text, CommentMark(0), None)


def on_one_line(value: Any) -> str:
    """Return a value as YAML on one line. Text is written without quotes if YAML reads it as text nevertheless."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{on_one_line(key)}: {on_one_line(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(on_one_line, value)) + "]"
    if isinstance(value, float):
        return repr(value).replace("e-0", "e-")
    is_plain = isinstance(value, str) and PLAIN.fullmatch(value) and value.lower() not in WORDS
    return str(value) if is_plain else json.dumps(value, ensure_ascii=not str(value).isprintable())
