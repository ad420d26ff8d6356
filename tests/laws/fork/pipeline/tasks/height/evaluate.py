"""Scores of heights."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.core.spec import Spec
from pipeline.evaluate.params import EvaluateSettings
from pipeline.evaluate.reports.metrics import SampleScores


class Settings(EvaluateSettings):
    name: Literal["height"]


class Evaluator:
    def __init__(self, spec: Spec, settings: Settings) -> None:
        self.pairs: list[NDArray[Any]] = []

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        self.pairs.append(torch.cat([targets, outputs], dim=1).numpy())

    def scores(self) -> dict[str, Any]:
        pairs = np.concatenate(self.pairs)
        return {"loss": float(np.square(pairs[:, 0] - pairs[:, 1]).mean()), "samples": len(pairs)}

    def sample_scores(self) -> SampleScores:
        actual, predicted = np.concatenate(self.pairs).T
        ones = np.ones(len(actual), np.int64)
        return SampleScores(np.square(actual - predicted), 0 * ones, ones, {"actual": actual, "predicted": predicted})

    def write(self, folder: Path, *, inputs: NDArray[Any], history: Sequence[Mapping[str, object]], model: nn.Module) -> None:
        assert len(inputs) == sum(map(len, self.pairs))
        assert history
