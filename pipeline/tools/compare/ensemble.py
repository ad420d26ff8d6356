"""Several models as one, which gives the mean of their probabilities."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pipeline.core.refusal import Refusal
from pipeline.inference.model_file import Manifest
from pipeline.inference.networks import Model
from pipeline.tools.compare.models import ComparedModel
from pipeline.tools.compare.paired import EvaluationSplit, Scored, incomparability


class Member(NamedTuple):
    """A model of an ensemble. `name` is the user's name for it."""

    name: str
    model: Model
    manifest: Manifest


class MeanOfProbabilities(nn.Module):
    """Maps stored inputs to the logarithms of the mean of the members' softmax probabilities, computed in float32. Their softmax is this mean."""

    def __init__(self, members: Sequence[Model]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, inputs: Tensor) -> Tensor:
        logarithms = torch.stack([member(inputs).float().log_softmax(dim=-1) for member in self.members])
        # sorted: otherwise the order of the members would decide the last bits of the sum
        return logarithms.sort(dim=0).values.logsumexp(dim=0) - math.log(len(self.members))


def averaged(members: Sequence[Member]) -> Model:
    """Return the models as one; a single model as it is. Their order changes no bit of its outputs.

    Raises Refusal, which names the difference, unless all have the same task, classes, form of inputs and precision.
    """
    first, *others = members
    if not others:
        return first.model
    targets = first.manifest.spec.targets
    if not (targets.has_classes or targets.per_token):
        raise Refusal(f"{first.name}: an ensemble averages probabilities, and the task {targets.kind} has none")
    for name, _, manifest in others:
        if reason := incomparability(first.manifest.spec, manifest.spec):
            raise Refusal(f"{name}: cannot be averaged with {first.name}: {reason}")
        if manifest.precision != first.manifest.precision:
            raise Refusal(
                f"{name}: cannot be averaged with {first.name}: it predicts in {manifest.precision}, and the other in "
                f"{first.manifest.precision}: train them with the same train.precision"
            )
    return Model(MeanOfProbabilities([member.model for member in members]), nn.Identity()).eval()  # a new module is in training mode


def score(models: Sequence[ComparedModel], split: EvaluationSplit) -> Scored:
    """Predict the split with the models as one. The digest of the result joins theirs by `+`. Raises Refusal as `averaged` does."""
    network = averaged([Member(model.name, split.network(model), model.manifest) for model in models])
    joined = replace(models[0], digest="+".join(model.digest for model in models))
    return Scored(joined, split.judged(network, models[0].manifest))
