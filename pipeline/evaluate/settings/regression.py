"""The section `evaluate` for a regression."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pipeline.evaluate.params import EvaluateSettings


class Settings(EvaluateSettings):
    name: Literal["regression"]
    confidence_level: Annotated[float, Field(gt=0, lt=1)]
    """Confidence level of `rmse_interval`, `mae_interval` and `r2_interval`, by the bootstrap."""
    mistakes: Annotated[int, Field(ge=0, le=100)]
    """Number of samples to list in a table, those with the largest errors first; 0 for none."""

    RECOMMENDED: ClassVar = {"confidence_level": 0.95, "mistakes": 25}
