"""A multilayer perceptron: flattened pixels or the features of a table, fully connected layers with ReLU and dropout."""

from itertools import pairwise
from typing import ClassVar, Literal

from torch import nn

from pipeline.core.section import Depth, Share, Width
from pipeline.core.spec import Spec
from pipeline.inference.params import ModelSettings


class Settings(ModelSettings):
    name: Literal["mlp"]
    width: Width
    """Units of each hidden layer."""
    depth: Depth
    """Number of hidden layers."""
    dropout: Share
    """Dropout probability of the hidden units."""

    RECOMMENDED: ClassVar = {"width": 512, "depth": 2, "dropout": 0.2}

    def build(self, spec: Spec) -> nn.Module:
        widths = [spec.num_features, *[self.width] * self.depth]
        layers = [nn.Sequential(nn.Linear(before, after), nn.ReLU(), nn.Dropout(self.dropout)) for before, after in pairwise(widths)]
        return nn.Sequential(nn.Flatten(), *layers, nn.Linear(self.width, spec.num_outputs))
