"""The section `evaluate` for a classification."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from pipeline.core.refusal import Refusal
from pipeline.core.section import Count
from pipeline.evaluate.params import EvaluateSettings


class Settings(EvaluateSettings):
    name: Literal["classification"]
    top_k: PositiveInt
    """The k of `top_k_accuracy`: a sample counts as correct if its class is among the k most likely. It is left out if k is the number of
    classes."""
    calibration_bins: Count
    """Number of equal-width confidence bins of the reliability curve and the expected calibration error."""
    confidence_level: Annotated[float, Field(gt=0, lt=1)]
    """Confidence level of `accuracy_interval`: over many test splits, at least this share of the intervals contains the true accuracy."""
    mistakes: Annotated[int, Field(ge=0, le=100)]
    """Number of wrongly predicted samples to show in a figure if they are images, or in a table if they are texts, those with the highest
    confidence first; 0 for none."""

    RECOMMENDED: ClassVar = {"top_k": 2, "calibration_bins": 15, "confidence_level": 0.95, "mistakes": 25}

    def refuse_misfit(self, num_outputs: int) -> None:
        """Raise Refusal if `top_k` is larger than the number of classes."""
        if self.top_k > num_outputs:
            raise Refusal(
                f"evaluate.top_k: {self.top_k} is more than the {num_outputs} classes of this dataset: write at most {num_outputs}"
            )
