"""Points on a plane: the target is a linear function of the coordinates."""

from collections.abc import Generator
from typing import ClassVar, Literal

import numpy as np
from pipeline.prepare.inputs.points import Statistics
from pipeline.tasks.height.targets import Targets

from pipeline.core.raw_dataset import TRAIN, RawDataset, SampleBlock
from pipeline.prepare.params import SourceSettings


class Settings(SourceSettings):
    inputs: ClassVar[str] = "points"
    TASK: ClassVar[str] = "height"
    name: Literal["plane"]

    def open(self, *, workers: int) -> RawDataset:  # nothing is decoded
        points = np.random.default_rng(0).uniform(-5, 5, (400, 3)).astype(np.float32)
        targets = (points @ np.array([[0.2], [-0.1], [0.3]], np.float32)).astype(np.float32)

        def blocks() -> Generator[SampleBlock]:
            yield SampleBlock(TRAIN, np.arange(len(points)), points)

        return RawDataset(Targets(), Statistics(points.shape[1]), {TRAIN: targets}, blocks)
