"""The sections that the stage `train` may read."""

from typing import Annotated

from pydantic import NonNegativeInt, ValidationInfo, field_validator

from pipeline.params.augment import AugmentSettings
from pipeline.params.loop import LoopSettings
from pipeline.params.model import ModelSettings
from pipeline.params.optimizer import AdamSettings, MuonSettings, OptimizerSettings
from pipeline.params.schedule import ScheduleSettings
from pipeline.params.section import Section
from pipeline.registry import MODELS


class TrainParams(Section):
    seed: NonNegativeInt
    """Seed of the random numbers of a training: of sample order, initial weights, dropout and augmentation. `source.seed` draws the splits."""
    model: Annotated[ModelSettings, MODELS]
    """The architecture: a module of `pipeline/models/`."""
    optimizer: OptimizerSettings
    schedule: ScheduleSettings
    augment: AugmentSettings | None
    """Random changes to training images; null for none. Must be null if the inputs are not images."""
    train: LoopSettings

    @field_validator("train")
    @classmethod
    def refuse_bf16_moments(cls, train: LoopSettings, info: ValidationInfo) -> LoopSettings:
        optimizer = info.data.get("optimizer")
        if train.precision == "bf16-true" and isinstance(optimizer, AdamSettings):
            raise ValueError(
                f"precision: bf16-true would round away small updates of {optimizer.name}'s running averages: "
                "write `train.precision: auto`, or set optimizer.name to muon or sgd"
            )
        return train

    @field_validator("train")
    @classmethod
    def refuse_sharded_matrices(cls, train: LoopSettings, info: ValidationInfo) -> LoopSettings:
        if train.sharding == "full" and isinstance(info.data.get("optimizer"), MuonSettings):
            raise ValueError(
                "sharding: full divides the matrices that muon orthogonalises as a whole: write `train.sharding: none`, or set optimizer.name to adamw or sgd"
            )
        return train
