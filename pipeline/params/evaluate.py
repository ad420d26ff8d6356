"""What `evaluate` may read."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from pipeline.params.section import Count, Section
from pipeline.refusal import Refusal

Views = Literal["none", "mirror", "mirror_translate"]


class EvaluateSettings(Section):
    batch_size: Count
    """Samples scored at once."""
    top_k: PositiveInt
    """A sample counts for `top_k_accuracy` when its class is among this many likeliest."""
    calibration_bins: Count
    """Equal-width bins of confidence for the reliability curve and the expected calibration error."""
    interval: Annotated[float, Field(gt=0, lt=1)]
    """Coverage of the interval of the accuracy: in this share of all test splits, or more, it holds the true accuracy."""
    mistakes: Annotated[int, Field(ge=0, le=100)]
    """The most confidently wrong samples to show in a picture; 0 for none."""
    test_time_augmentation: Views
    """A second accuracy, named after it (`test/accuracy_mirror`), of logits averaged over views of each image: itself and its mirror image, or
    these and both moved by a pixel two ways; `none` for no such number. All else is of the plain image."""

    def refuse_rank_beyond(self, num_classes: int) -> None:
        """Raises Refusal where `top_k` says nothing of so few classes."""
        if self.top_k > num_classes:
            raise Refusal(f"evaluate.top_k: {self.top_k} of {num_classes} classes is always right: write less")


class EvaluateParams(Section):
    evaluate: EvaluateSettings
