"""The section `evaluate` for a regression."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pipeline.evaluate.params import EvaluateSettings


class Settings(EvaluateSettings):
    name: Literal["regression"]
    confidence_level: Annotated[float, Field(gt=0, lt=1)]
    """Confidence level of `rmse_interval`, `mae_interval` and `r2_interval`, by the bootstrap."""

    RECOMMENDED: ClassVar = {"confidence_level": 0.95}
