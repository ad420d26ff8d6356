"""Asks about data what only the user can say, and writes the words of a command that answer it."""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.core.refusal import Refusal
from pipeline.core.registry import USUAL_TASKS
from pipeline.tools.params.commented_yaml import on_one_line

MOST_LISTED = 8
CLASSES, REGRESSION, SEVERAL = USUAL_TASKS.values()
WORDS = {
    "image_column": "the images",
    "label_column": "the labels",
    "text_column": "the texts",
    "split_column": "the splits",
    "target_column": "the texts to write",
}
"""The keys of the section `source` that name a column."""
Name = str | int
Given = Mapping[str, Any]
"""The keys of the section `source` that the user has set."""


class Question(Refusal):
    """Raised if data can be read, but only the user can say how: `questions` about the data in `path`, each with its answers."""

    def __init__(self, path: Path, *questions: str) -> None:
        super().__init__("; and ".join(questions), place=f"data={path}")
        self.path, self.questions = path, questions


def assignment(key: str, value: object) -> str:
    """Return the word of a command that gives a value to a key of the section `source`, in the quotes that YAML and the shell need."""
    return shlex.quote(f"source.{key}={on_one_line(str(value) if isinstance(value, Path) else value)}")


def ways(key: str, values: Iterable[object]) -> str:
    """Return the words of a command each of which gives one of `values` to a key of the section `source`."""
    return " or ".join(assignment(key, value) for value in [*values][:MOST_LISTED])
