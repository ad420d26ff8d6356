"""Reads a YAML file as plain data, with the line number of every key. Parses it as DVC does: by YAML 1.2, where `1e-3` is a number."""

import re
import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from pipeline.core import untrusted
from pipeline.core.refusal import Location, Refusal
from pipeline.core.untrusted import shown

MAX_BYTES = 20_000
MAX_VALUES = 2_000
MAX_BITS = 4096
MAX_DEPTH = 20
MAX_BRACKETS = 200
BRACKET = re.compile(r"\[|(?<!\$)\{")
"""A bracket of YAML: ruamel takes seconds to parse a thousand nested ones. The `${` of DVC's templates is none."""
CONSTRUCTION_ERRORS = (YAMLError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError)
"""The exceptions that ruamel raises for a value that does not fit its tag."""
TEXT_TAG, MERGE_TAG = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"
KIND_NAMES = {"NoneType": "empty", "list": "a list"}


@dataclass(frozen=True)
class Document:
    """A parsed YAML file: `data` has dicts, lists and scalars, and `root` is the YAML node tree, which has the line numbers."""

    path: Path
    data: dict[str, Any]
    root: Node

    @classmethod
    def read(cls, path: Path) -> "Document":
        """Read and parse the file.

        Raises Refusal if the file is missing or unreadable, too large or too deeply nested, or not valid YAML with a mapping at the top.
        """
        return cls.of(read_text(path), path)

    @classmethod
    def of(cls, text: str, path: Path) -> "Document":
        """Parse `text`, the text of the file `path`. Raises Refusal like `read`."""
        if marker := re.search(r"^(<{7}|>{7}) ", text, re.MULTILINE):  # Git writes it where it could not merge two versions
            line = text.count("\n", 0, marker.start()) + 1
            remedy = "keep one of the two versions, and remove the lines with <<<, === and >>>"
            raise Refusal("contains a conflict of Git", remedy=remedy, file=str(path), line=line)
        if len(BRACKET.findall(text)) > MAX_BRACKETS:
            raise Refusal(f"contains more than {MAX_BRACKETS} brackets", remedy="this is not a parameter file", file=str(path), line=1)
        try:
            data, root = parse(text)
        except MarkedYAMLError as error:
            raise Refusal(f"is not valid YAML: {describe(error)}", file=str(path), line=line_of(error)) from None
        except ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            problem = f"is not valid YAML: contains the control character U+{error.character:04X}"
            raise Refusal(problem, remedy="remove it", file=str(path), line=line) from None
        except RecursionError:
            raise Refusal("is nested too deeply", remedy="this is not a parameter file", file=str(path), line=1) from None
        except CONSTRUCTION_ERRORS as error:
            raise Refusal(f"contains an invalid value: {untrusted.reason(error)}", file=str(path), line=1) from None
        if not isinstance(data, dict):
            problem = f"should contain sections such as `train:`, but is {KIND_NAMES.get(type(data).__name__, 'a single value')}"
            raise Refusal(problem, remedy="copy a file of presets/ to this path", file=str(path), line=1)
        return cls(path, data, root)

    def line(self, location: Location) -> int:
        """Return the line number, from 1, of the key at `location`, a path of keys and list indices.

        If the file lacks this key, return the line of the innermost section on the path that the file has, or 1 if it has none.
        """
        node, line = self.root, 1
        for part in location:
            found_child = child(node, part)
            if found_child is None:
                break
            node, line = found_child
        return line


def read_text(path: Path) -> str:
    try:
        content = untrusted.read(path, MAX_BYTES)
        return content.decode("utf-8")
    except FileNotFoundError:
        raise Refusal("is missing", remedy="copy a file of presets/ to this path", file=str(path)) from None
    except untrusted.TooLarge:
        raise Refusal(f"is larger than {MAX_BYTES} bytes", remedy="this is not a parameter file", file=str(path), line=1) from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        remedy = "save it as UTF-8, or copy a file of presets/ to this path"
        raise Refusal(f"is not UTF-8 text ({error.reason})", remedy=remedy, file=str(path), line=line) from None
    except OSError as error:
        raise Refusal(f"cannot be read ({error.strerror})", remedy="make it a readable file", file=str(path)) from None


def parse(text: str) -> tuple[Any, Node]:
    """Return the pair (data, node tree) of a YAML text. The caller may change the data."""
    data, root = parsed(text)
    return deepcopy(data), root


@lru_cache(maxsize=64)  # a command asks for the same text several times, and parsing it takes longer than most other work
def parsed(text: str) -> tuple[Any, Node]:
    yaml = YAML(typ="safe", pure=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ruamel warns about an anchor that is defined twice; DVC reports it, if it is an error
        root = yaml.compose(text)
        if root is not None:
            refuse_excess(root, text)
        return to_plain_data(None if root is None else yaml.constructor.construct_document(root)), root


def refuse_excess(root: Node, text: str) -> None:
    """Raise ValueError if the file expands to more than MAX_VALUES values, and RecursionError if it nests deeper than MAX_DEPTH.

    Aliases (`*name`) can make a small file huge, so call this before the nodes are converted to Python values. `text` is the text of the
    file: `extent` turns its keys into text.
    """
    values, height = extent(root, text, {})
    if height > MAX_DEPTH:
        raise RecursionError
    if values > MAX_VALUES:
        raise ValueError(f"the file expands to more than {MAX_VALUES} values: use fewer aliases")


def extent(node: Node, text: str, extents: dict[int, tuple[int, int]], depth: int = 0) -> tuple[int, int]:
    """Return the pair (number of nodes, depth) of the tree that begins at `node`. A tree of one node has the depth 1. Turn its keys into text.

    A node that has several aliases is counted once for each use. `extents` caches the results by the id of the node. `depth` is the depth
    of `node` in the whole file, and `text` its text. Raises RecursionError if `depth` is larger than MAX_DEPTH.
    """
    if depth > MAX_DEPTH:
        raise RecursionError  # an alias that refers to its own parent recurses for ever
    if id(node) not in extents:
        children = (
            chain.from_iterable(node.value) if isinstance(node, MappingNode) else node.value if isinstance(node, SequenceNode) else ()
        )
        parts = [extent(child, text, extents, depth + 1) for child in children]
        extents[id(node)] = 1 + sum(values for values, _ in parts), 1 + max((height for _, height in parts), default=0)
        if isinstance(node, MappingNode):
            node.value = [(as_text_key(key, text), value) for key, value in node.value]
    return extents[id(node)]


def as_text_key(key: Node, text: str) -> Node:
    """Return a key such as `~`, `true` or `[a, b]` as a text node with the same characters. Text keys and `<<` are returned unchanged.

    YAML would turn such a key into null, a boolean or a list. A text key can be reported as an unknown key, with its line. `text` is the
    text of the whole file.
    """
    if key.tag in (TEXT_TAG, MERGE_TAG):
        return key
    return ScalarNode(TEXT_TAG, text[key.start_mark.index : key.end_mark.index], key.start_mark, key.end_mark)


def line_of(error: MarkedYAMLError) -> int:
    mark = error.problem_mark or error.context_mark
    return mark.line + 1 if mark else 1


def describe(error: MarkedYAMLError) -> str:
    """Return ruamel's message for the error. If the faulty construct begins on another line than the error, add this line.

    If a tab caused the error, add the remedy, because a tab looks like spaces in an editor.
    """
    problem = str(error.problem).partition(" with value")[0]  # for a duplicate section, its whole contents would follow
    start_line = error.context_mark.line + 1 if error.context_mark else line_of(error)
    context = f", {error.context} from line {start_line}" if error.context and start_line != line_of(error) else ""
    return shown(problem) + context + (": indent with spaces" if r"'\t'" in problem else "")


def child(node: Node, part: str | int) -> tuple[Node, int] | None:
    """Return the child of `node` under a key or an index, and the line of the child; None if there is no such child."""
    if isinstance(node, MappingNode):
        # take the last match: keys merged by `<<` come before the section's own keys, which override them
        return next(((value, key.start_mark.line + 1) for key, value in reversed(node.value) if key.value == part), None)
    if isinstance(node, SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part].start_mark.line + 1
    return None


def to_plain_data(value: Any) -> Any:
    """Convert a parsed value to dicts with str keys, lists and scalars. Dates become text.

    Raises TypeError for a value of another type. Raises ValueError for an integer of more than MAX_BITS bits, and for text that is not
    valid Unicode (a lone surrogate).
    """
    if isinstance(value, Mapping):
        return {to_plain_data(str(key)): to_plain_data(item) for key, item in value.items()}
    if isinstance(value, list):
        return [to_plain_data(item) for item in value]
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ValueError(f"a number of {value.bit_length()} bits: write a number of at most {MAX_BITS} bits")
    if value is None or isinstance(value, bool | int | float):
        return value
    if not isinstance(value, str | date):
        raise TypeError(f"a value of the type {type(value).__name__}: write text, numbers, lists or sections")
    text = str(value)
    text.encode()  # raises for a lone surrogate, which neither a file name nor JSON can hold
    return text
