"""scikit-learn's digits as a source."""

import numpy as np

from pipeline.core.raw_dataset import TRAIN
from pipeline.sources.digits import Settings


def test_the_digits_are_there_with_their_classes() -> None:
    settings = Settings.model_validate(
        {"name": "digits", "root": "data/README.md", "valid": 0.2, "test": 0.2, "seed": 1, "folds": None, "fold": 0}, strict=False
    )
    raw_dataset = settings.open(workers=1)
    assert len(raw_dataset.task.classes) == settings.num_classes() == 10
    (block,) = raw_dataset.blocks()
    assert block.inputs.shape == (1797, 8, 8, 1)
    assert (block.inputs.min(), block.inputs.max()) == (0, 255)
    assert np.array_equal(np.unique(raw_dataset.targets[TRAIN]), np.arange(10))
