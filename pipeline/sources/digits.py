"""The 1,797 handwritten digits of 8x8 pixels that come with scikit-learn: real data, no download."""

from functools import partial
from importlib.metadata import distribution
from typing import ClassVar, Literal

import numpy as np

from pipeline.core.raw_dataset import TRAIN, RawDataset, blocks_of
from pipeline.prepare.inputs.image import Statistics
from pipeline.prepare.params import SourceSettings
from pipeline.tasks.classification.targets import ClassTargets

LEVELS = 16


class Settings(SourceSettings):
    """Reads the digits that come with scikit-learn. `root` is not read, but DVC requires a path that exists: it must be `data/README.md`."""

    embedded: ClassVar[bool] = True
    name: Literal["digits"]

    RECOMMENDED: ClassVar = {"root": "data/README.md", "test": 0.2}

    def num_classes(self) -> int:
        return 10

    def open(self, *, workers: int) -> RawDataset:
        # `sklearn.datasets.load_digits` reads this file, but to import it takes seconds
        table = np.loadtxt(str(distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")), delimiter=",")
        inputs = np.round(table[:, :-1].reshape(-1, 8, 8, 1) * (255 / LEVELS)).astype(np.uint8)
        task, statistics = ClassTargets(classes=tuple(map(str, range(10)))), Statistics(inputs.shape[1:])
        targets, blocks = table[:, -1].astype(np.int64), partial(blocks_of, {TRAIN: inputs}, len(inputs))
        return RawDataset(task, statistics, {TRAIN: targets}, blocks)
