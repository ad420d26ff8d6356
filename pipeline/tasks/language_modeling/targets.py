"""Describes targets that are the next token at each position of a text."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

import numpy as np

from pipeline.core import spec


class NextTokenTargets(spec.Targets):
    """Describes the targets of a language model: the target of each token is the token that follows.

    The inputs contain these tokens already, so no targets are stored: the array of a split's targets has the shape (n, 0).
    """

    dtype: ClassVar[type[np.generic]] = np.uint8
    averaged: ClassVar[bool] = True
    predictions: ClassVar[str] = "the text that it writes for each"
    form: ClassVar[Literal["tokens"]] = "tokens"
    hub_task: ClassVar[str] = "text-generation"
    stored: ClassVar[Literal["windows"]] = "windows"
    metrics: ClassVar[Mapping[str, spec.Direction]] = {
        "loss": "min",
        "perplexity": "min",
        "bits_per_character": "min",
        "bits_per_byte": "min",
        "accuracy": "max",
    }

    kind: Literal["language_modeling"] = "language_modeling"

    @classmethod
    def example(cls) -> Self:
        return cls()


Targets = NextTokenTargets
