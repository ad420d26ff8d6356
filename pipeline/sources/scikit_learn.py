"""Small tables that come with scikit-learn: real data, no download."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from pipeline.core.raw_dataset import TRAIN, RawDataset
from pipeline.core.spec import Targets
from pipeline.prepare.inputs.table import Part, Statistics
from pipeline.prepare.params import SourceSettings
from pipeline.tasks.classification.targets import ClassTargets
from pipeline.tasks.regression.targets import NumberTargets

CLASSES = {"breast_cancer": 2, "iris": 3, "wine": 3}
"""The number of classes of each table whose targets are classes."""


class Settings(SourceSettings):
    """Reads a table that comes with scikit-learn. `root` is not read, but DVC requires a path that exists: it must be `data/README.md`."""

    embedded: ClassVar[bool] = True
    inputs: ClassVar[str] = "table"
    name: Literal["scikit_learn"]
    dataset: Literal["breast_cancer", "diabetes", "iris", "wine"]
    """The table: `breast_cancer`, `iris` and `wine` have classes, `diabetes` has numbers as targets."""

    RECOMMENDED: ClassVar = {"root": "data/README.md", "dataset": "breast_cancer", "test": 0.2}

    @classmethod
    def task_of(cls, section: Mapping[str, Any]) -> str:
        return "regression" if section.get("dataset") == "diabetes" else "classification"

    def num_classes(self) -> int | None:
        return CLASSES.get(self.dataset)

    def open(self, *, workers: int) -> RawDataset:
        from sklearn import datasets  # late: the import takes a second

        found = datasets.load_diabetes(scaled=False) if self.dataset == "diabetes" else getattr(datasets, f"load_{self.dataset}")()
        statistics = Statistics([Part(str(name), "number") for name in found.feature_names], {TRAIN: len(found.data)})
        statistics.add_rows(TRAIN, 0, list(map(pa.array, found.data.T.astype(np.float64))))
        task: Targets
        if self.dataset == "diabetes":
            task, targets = NumberTargets(columns=("progression",)), found.target.astype(np.float64)[:, None]
        else:
            task, targets = ClassTargets(classes=tuple(map(str, found.target_names))), found.target.astype(np.int64)
        return RawDataset(task, statistics, {TRAIN: targets}, statistics.blocks, statistics.fit)
