"""A linear model: one layer. With numbers as targets it is a linear regression, with classes a logistic regression."""

from typing import Literal

from torch import nn

from pipeline.core.spec import Spec
from pipeline.inference.params import ModelSettings


class Settings(ModelSettings):
    name: Literal["linear"]

    def build(self, spec: Spec) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(spec.num_features, spec.num_outputs))
