"""The section `evaluate`: how the test split is scored."""

from collections.abc import Container
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from pipeline.params.section import Count, Section
from pipeline.refusal import Refusal

Views = Literal["none", "mirror", "mirror_translate"]


class EvaluateSettings(Section):
    batch_size: Count
    """Samples per forward pass."""
    top_k: PositiveInt
    """The k of `top_k_accuracy`: a sample counts as correct if its class is among the k most likely."""
    calibration_bins: Count
    """Number of equal-width confidence bins of the reliability curve and the expected calibration error."""
    confidence_level: Annotated[float, Field(gt=0, lt=1)]
    """Confidence level of `accuracy_interval`: over many test splits, at least this share of the intervals contains the true accuracy."""
    mistakes: Annotated[int, Field(ge=0, le=100)]
    """Number of wrongly predicted samples to show in a figure, those with the highest confidence first; 0 for none."""
    test_time_augmentation: Views
    """Report a second accuracy (such as `test/accuracy_mirror`) from logits averaged over views of each image. `mirror`: the image and
    its mirror image; `mirror_translate`: also both shifted by one pixel in two directions; `none`: no such metric. All other metrics use
    the unmodified image."""

    def refuse_rank_beyond(self, num_classes: int) -> None:
        """Raise Refusal if `top_k` is larger than the number of classes."""
        if self.top_k > num_classes:
            raise Refusal(
                f"evaluate.top_k: {self.top_k} is more than the {num_classes} classes of this dataset: write at most {num_classes}"
            )

    def refuse_impossible_views(self, inputs: str, metrics: Container[str]) -> None:
        """Raise Refusal if test-time augmentation is set, but the inputs are not images or the task has no metric `accuracy`.

        `inputs` is the kind of the inputs, such as `image`. `metrics` are the names of the task's metrics.
        """
        if self.test_time_augmentation != "none" and (inputs != "image" or "accuracy" not in metrics):
            raise Refusal("evaluate.test_time_augmentation: needs images as inputs, and a task with the metric accuracy: write `none`")


class EvaluateParams(Section):
    evaluate: EvaluateSettings
