"""The model as others use it: raw images in, logits out."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.engine import model_file
from pipeline.engine.classifier import Classifier


def deployable(path: Path) -> tuple[Classifier, NDArray[np.uint8], tuple[str, ...]]:
    """Return the model of a file, normalisation inside, an example of its input (two black images: 2, height, width, channels), and the class names.

    Two, because an exporter would take a first dimension of 1 for a constant.
    """
    classifier, manifest = model_file.load(path)
    return classifier, np.zeros((2, *manifest.spec.shape), dtype=np.uint8), manifest.spec.classes
