"""Describes targets that are texts: the tokens of the target text in each pair of texts."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

import numpy as np

from pipeline.core import spec


class SequenceTargets(spec.Targets):
    """Describes the targets of a model that writes a text for each text.

    The inputs contain the target texts already, so no targets are stored: the array of a split's targets has the shape (n, 0).
    """

    dtype: ClassVar[type[np.generic]] = np.uint8
    predictions: ClassVar[str] = "the text that it writes for each"
    form: ClassVar[Literal["tokens"]] = "tokens"
    hub_task: ClassVar[str] = "text2text-generation"
    loss_keys: ClassVar[frozenset[str]] = frozenset({"label_smoothing"})
    stored: ClassVar[Literal["within"]] = "within"
    metrics: ClassVar[Mapping[str, spec.Direction]] = {"loss": "min", "perplexity": "min", "accuracy": "max"}

    kind: Literal["sequence"] = "sequence"

    @classmethod
    def example(cls) -> Self:
        return cls()


Targets = SequenceTargets
