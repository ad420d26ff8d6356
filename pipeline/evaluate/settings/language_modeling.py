"""The section `evaluate` for a language model."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt

from pipeline.core.section import Count
from pipeline.evaluate.params import EvaluateSettings

Temperature = Annotated[float, Field(ge=0, le=100)]


class Settings(EvaluateSettings):
    name: Literal["language_modeling"]
    passage_tokens: Count
    """Length in tokens of the passages among which the most surprising ones are found."""
    passages: Annotated[int, Field(ge=0, le=1000)]
    """Number of the most surprising passages of the test split to list in a table; 0 for none."""
    temperatures: Annotated[tuple[Temperature, ...], Field(max_length=10)]
    """Temperatures at which a text is generated. 0 takes the most likely token each time; a list of none writes no texts."""
    sample_tokens: Count
    """Length in tokens of each generated text."""
    prompt: Annotated[str, Field(max_length=10_000)]
    """The beginning of the generated texts; an empty text for the beginning of a document."""
    sample_seed: NonNegativeInt
    """Seed of the generated texts."""

    RECOMMENDED: ClassVar = {
        "batch_size": 64,
        "passage_tokens": 64,
        "passages": 20,
        "temperatures": [0.5, 0.8, 1.0],
        "sample_tokens": 120,
        "prompt": "",
        "sample_seed": 1,
    }
