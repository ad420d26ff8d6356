"""The exceptions for errors that the user can fix, and parts of messages, such as `2 steps`, `a, b and 3 more`, or the score `0.9123`."""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from pipeline.core import untrusted

KEY = re.compile(r"(\w+(?:\.\w+)*): ")
INDEX = re.compile("0|[1-9][0-9]*")
PLAIN = re.compile(r"[^\s:]+")
MAX_SHOWN = 60

Location = tuple[str | int, ...]
"""The keys and indices that lead to a value of a YAML file."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: its text, the remedy, and where it is. What is not known is empty, and `line` is then 0.

    `file` and `line` are of the parameter file, or of another file that was parsed, and `location` is of a key in it.
    `place` is what the value of the key names, such as a file of the dataset.
    """

    text: str
    remedy: str = ""
    location: Location = ()
    file: str = ""
    line: int = 0
    place: str = ""

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the problem in a line of a message. If the line begins with a key, such as `train.steps: `, the problem has its location."""
        if not (key := KEY.match(text)):
            return cls(text)
        location = tuple(int(part) if INDEX.fullmatch(part) else part for part in key[1].split("."))
        return cls(text[key.end() :], location=location)

    def __str__(self) -> str:
        file = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (file, dotted(self.location), self.place, self.text, self.remedy) if part)

    @property
    def unplaced(self) -> str:
        """Return the text and the remedy."""
        return str(Problem(self.text, self.remedy))


def dotted(location: Location) -> str:
    """Return the keys of `location` with dots between them. A key that is empty or contains a blank or a colon is in quotes."""
    return ".".join(
        untrusted.shown(part if PLAIN.fullmatch(str(part)) else json.dumps(part, ensure_ascii=False), MAX_SHOWN) for part in location
    )


class Refusal(ValueError):
    """Raised for bad input. The message says where the error is and how to fix it. The message is shown without a traceback; the exit code is 2.

    `problems` has what the message says, one for each line. What a caller distinguishes is in their fields, so that nothing else
    reads the text of a message.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, text: str, **fields: Any) -> None:
        """Refuse for one reason, with the other fields of its Problem as `fields`. Its `place` may begin with the key. A text alone may have
        several lines, each a problem that may begin with its key.
        """
        if place := fields.get("place"):
            named = Problem.read(place)
            fields |= {"location": named.location, "place": named.text}
        self.problems = (Problem(text, **fields),) if fields else tuple(map(Problem.read, text.splitlines()))
        super().__init__(str(self.problems[0]) if fields else text)

    @classmethod
    def of(cls, problems: Iterable[Problem]) -> Self:
        """Return the refusal for several reasons."""
        each = tuple(problems)
        refusal = cls("\n".join(map(str, each)))
        refusal.problems = each
        return refusal

    @property
    def on_one_line(self) -> str:
        return "; ".join(map(str, self.problems))

    def within(self, *places: str) -> str:
        """Return the message without the key `source.root`, and without the first of `places` that then begins it: the caller has named it."""
        text = "\n".join(str(replace(each, location=()) if each.location == ("source", "root") else each) for each in self.problems)
        place = next((place for place in places if text.startswith(f"{place}: ")), None)
        return text.removeprefix(f"{place}: ") if place is not None else text

    def named(self, name: str) -> str:
        """Return the message with `name`, a file or another input, at its beginning, unless it begins with it or with a part of it."""
        text = str(self)
        return text if text.startswith((f"{name}/", f"{name}:")) else f"{name}: {text}"


class Unavailable(Refusal):
    """Raised if the same command may succeed later: another job holds a lock, data were changed while a stage read them, or a server does not answer. The exit code is 69.

    A scheduler may try again after 69, but not after 2.
    """

    exit_code: ClassVar[int] = os.EX_UNAVAILABLE


def counted(count: int, noun: str, style: str = "") -> str:
    """Return the count and the noun in singular or plural, such as `1 class` or `10 classes`. `style` formats the number; `,` groups it."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:{style}} {noun}{ending}"


def listed(texts: Sequence[str], most: int, *, separator: str = ", ") -> str:
    """Return the first `most` of the texts, and how many more there are, such as `a, b and 3 more`."""
    more = f"{separator.strip(', ')} and {len(texts) - most} more" if len(texts) > most else ""
    return separator.join(texts[:most]) + more


def rounded(value: float) -> str:
    """Return a score, such as an accuracy or a loss, as text, such as `0.9123`: with four decimals, below 0.001 with four significant digits, and from 100,000 on with eight.

    So a small number, such as 3.159e-47, is never shown as 0.0000.
    """
    if not value or 0.001 <= abs(value) < 100_000:
        return f"{value:.4f}"
    return f"{value:.4g}" if abs(value) < 1 else f"{value:.8g}"


@contextmanager
def rewording(reword: Callable[[Problem], Problem]) -> Iterator[None]:
    """Within this context, replace each problem of a Refusal by what `reword` returns for it, such as the problem with its line."""
    try:
        yield
    except Refusal as refusal:
        kind = Unavailable if isinstance(refusal, Unavailable) else Refusal  # other subclasses end here as what they are for the user
        raise kind.of(map(reword, refusal.problems)) from None
