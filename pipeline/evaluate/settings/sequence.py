"""The section `evaluate` for a model that writes a text for each text."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pipeline.evaluate.params import EvaluateSettings

WIDEST = 64
"""Upper bound for the width of a beam."""


class Settings(EvaluateSettings):
    name: Literal["sequence"]
    beam: Annotated[int, Field(ge=1, le=WIDEST)]
    """Width of the beam search by which texts are written; 1 takes the most probable token each time."""
    confidence_level: Annotated[float, Field(gt=0, lt=1)]
    """Confidence level of `exact_match_interval`."""
    samples: Annotated[int, Field(ge=0, le=1000)]
    """Number of texts to list with the source and the target, those with the highest loss first; 0 for none."""

    RECOMMENDED: ClassVar = {"beam": 1, "confidence_level": 0.95, "samples": 50}
