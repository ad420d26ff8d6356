"""Loads a model for deployment: raw images in, logits out."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.engine import model_file
from pipeline.engine.classifier import Classifier


def deployable(path: Path) -> tuple[Classifier, NDArray[np.uint8], tuple[str, ...]]:
    """Return the model of a file, normalisation included, an example input, and the class names.

    The example is two black images (2, height, width, channels): an exporter would treat a first dimension of 1 as a constant.
    """
    classifier, manifest = model_file.load(path)
    return classifier, np.zeros((2, *manifest.spec.shape), dtype=np.uint8), manifest.spec.classes
