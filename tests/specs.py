"""Specs of small image classifications."""

from collections.abc import Sequence

from pipeline.inputs.image.description import ImageInputs
from pipeline.spec import Spec
from pipeline.tasks.classification.targets import ClassTargets


def image_spec(*, shape: tuple[int, int, int], classes: Sequence[str], mean: Sequence[float], std: Sequence[float]) -> Spec:
    """Return the spec of images of `shape` (height, width, channels)."""
    height, width, channels = shape
    inputs = ImageInputs(height=height, width=width, channels=channels, mean=tuple(mean), std=tuple(std))
    return Spec(inputs=inputs, targets=ClassTargets(classes=tuple(classes)))
