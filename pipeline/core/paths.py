"""Paths of the pipeline's files, relative to the top of the checkout in which every stage runs."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Paths:
    top: Path = Path()

    @property
    def params(self) -> Path:
        return self.top / "params.yaml"

    @property
    def prepared(self) -> Path:
        return self.top / "data/prepared"

    @property
    def model(self) -> Path:
        return self.top / "models/model.safetensors"

    @property
    def metrics(self) -> Path:
        return self.top / "metrics"

    @property
    def plots(self) -> Path:
        return self.top / "plots"

    @property
    def history(self) -> Path:
        return self.plots / "train/history.csv"

    @property
    def evaluation_plots(self) -> Path:
        return self.plots / "evaluate"

    @property
    def lock(self) -> Path:
        return self.top / "requirements.lock"

    @property
    def dvc_lock(self) -> Path:
        return self.top / "dvc.lock"
