"""Reads a YAML file as plain data, with the line number of every key. Parses it as DVC does: by YAML 1.2, where `1e-3` is a number."""

import json
import re
import warnings
from collections import ChainMap
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import RoundTripConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.scalarbool import ScalarBoolean

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
KIND_NAMES = {"NoneType": "empty", "list": "a list"}


@dataclass(frozen=True)
class Document:
    """A parsed YAML file: `data` has dicts, lists and scalars, and `lines` the line of each value by its location."""

    path: Path
    data: dict[str, Any]
    lines: Mapping[Location, int]

    @classmethod
    def read(cls, path: Path) -> "Document":
        """Read and parse the file.

        Raises Refusal if the file is missing or unreadable, too large or too deeply nested, or not valid YAML with a mapping at the top.
        """
        return cls.of(read_text(path), path)

    @classmethod
    def of(cls, text: str, path: Path) -> "Document":
        """Parse `text`, the text of the file `path`. Raises Refusal like `read`."""
        refuse_conflict(text, path)
        refuse_brackets(text, path)
        try:
            data, lines = parse(text)
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
            kind = KIND_NAMES.get(type(data).__name__, "a single value")
            problem = f"should contain sections such as `train:`, but is {kind}"
            raise Refusal(problem, remedy="copy a file of presets/ to this path", file=str(path), line=1)
        return cls(path, data, lines)

    def line(self, location: Location) -> int:
        """Return the line number, from 1, of the key at `location`, a path of keys and list indices.

        If the file lacks this key, return the line of the innermost section on the path that the file has, or 1 if it has none.
        """
        sections = (location[:length] for length in range(len(location), 0, -1))
        return next((self.lines[section] for section in sections if section in self.lines), 1)


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


def refuse_conflict(text: str, path: Path) -> None:
    """Raise Refusal if `text`, the text of the file `path`, has a marker that Git writes where it could not merge two versions."""
    if marker := re.search(r"^(<{7}|>{7}) ", text, re.MULTILINE):
        line = text.count("\n", 0, marker.start()) + 1
        remedy = "keep one of the two versions, and remove the lines with <<<, === and >>>"
        raise Refusal("contains a conflict of Git", remedy=remedy, file=str(path), line=line)


def refuse_brackets(text: str, path: Path) -> None:
    if len(BRACKET.findall(text)) > MAX_BRACKETS:
        raise Refusal(f"contains more than {MAX_BRACKETS} brackets", remedy="this is not a parameter file", file=str(path), line=1)


def parse(text: str) -> tuple[Any, Mapping[Location, int]]:
    """Return the data of a YAML text, which the caller may change, and the line of each of its values."""
    data, lines = parsed(text)
    return deepcopy(data), lines


@lru_cache(maxsize=64)  # a command asks for the same text several times, and parsing it takes longer than most other work
def parsed(text: str) -> tuple[Any, Mapping[Location, int]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ruamel warns about an anchor that is defined twice; DVC reports it, if it is an error
        plain = PlainData()
        return plain.of(load(text)), plain.lines


def load(text: str) -> Any:
    """Parse YAML into the values of ruamel, which keep their comments, their notation and their lines."""
    ruamel = YAML()  # which makes no Python objects, unlike the yaml.load of PyYAML
    ruamel.Constructor = Constructor
    ruamel.preserve_quotes = True
    return ruamel.load(text)


class Constructor(RoundTripConstructor):
    """Refuses a tag that it does not know, as DVC does. It is a subclass because ruamel registers functions for a whole class."""


Constructor.add_constructor(None, Constructor.construct_undefined)


class PlainData:
    """Converts the values of `load` to dicts with str keys, lists and scalars, and collects the line, from 1, of each value in `lines`.

    A value that has several aliases (`*name`) is converted, and counted, once for each use.
    """

    def __init__(self) -> None:
        self.lines: dict[Location, int] = {}
        self.num_values = 0

    def of(self, value: Any, location: Location = ()) -> Any:
        """Return the plain data of `value`, the value at `location`. Dates become text.

        Raises ValueError for more than MAX_VALUES values, RecursionError for more than MAX_DEPTH levels, and like `scalar`.
        """
        self.num_values += 1
        if self.num_values > MAX_VALUES:
            raise ValueError(f"the file expands to more than {MAX_VALUES} values: use fewer aliases")
        if len(location) >= MAX_DEPTH:
            raise RecursionError  # an alias that refers to its own parent recurses for ever
        if not isinstance(value, CommentedMap | CommentedSeq):
            return scalar(value)
        # the keys that are merged by `<<` have their lines in another section; a value that was added to those of the file has none
        positions = ChainMap(*(each.lc.data or {} for each in (value, *getattr(value, "merge", ()))))
        found = dict[str | int, Any]()
        for key, item in value.items() if isinstance(value, CommentedMap) else enumerate(value):
            part = key if isinstance(value, CommentedSeq) else scalar(key if isinstance(key, str) else json.dumps(key, default=str))
            if key in positions:
                self.lines[*location, part] = positions[key][0] + 1
            found[part] = self.of(item, (*location, part))
        return found if isinstance(value, CommentedMap) else [*found.values()]


def scalar(value: Any) -> Any:
    """Return a scalar of ruamel as one of Python.

    Raises TypeError for a value of another type. Raises ValueError for an integer of more than MAX_BITS bits, and for text that is not
    valid Unicode (a lone surrogate).
    """
    if isinstance(value, bool | ScalarBoolean):
        return bool(value)
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise ValueError(f"a number of {value.bit_length()} bits: write a number of at most {MAX_BITS} bits")
        return int(value)
    if value is None or isinstance(value, float):
        return value if value is None else float(value)
    if not isinstance(value, str | date):
        raise TypeError(f"a value of the type {type(value).__name__}: write text, numbers, lists or sections")
    text = str(value)
    text.encode()  # raises for a lone surrogate, which neither a file name nor JSON can hold
    return text


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
