"""The section `evaluate` for samples with several labels."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from pipeline.evaluate.params import EvaluateSettings


class Settings(EvaluateSettings):
    name: Literal["multi_label"]
    confidence_level: Annotated[float, Field(gt=0, lt=1)]
    """Confidence level of the intervals of all scores, by the bootstrap."""

    RECOMMENDED: ClassVar = {"confidence_level": 0.95}

    @field_validator("metrics")
    @classmethod
    def refuse_repeated(cls, metrics: tuple[str, ...]) -> tuple[str, ...]:
        if repeated := next((name for name in metrics if name in ("average_precision", "macro_f1")), None):
            raise ValueError(f"{repeated} is a score that this task always has: leave it out")
        return metrics
