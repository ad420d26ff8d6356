"""One linear layer."""

from typing import Literal

from pipeline.inputs.points.description import Inputs
from torch import nn

from pipeline.core.spec import Spec
from pipeline.inference.params import ModelSettings


class Settings(ModelSettings):
    name: Literal["line"]

    def build(self, spec: Spec) -> nn.Module:
        return nn.Linear(Inputs.of(spec).length, spec.num_outputs)
