"""The section `optimizer`: what moves the weights."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, ValidationInfo, field_validator

from pipeline.params.section import Section, Share


class EveryOptimizer(Section):
    name: str
    """`sgd`, `adam`, `adamw` or `muon`; each has keys of its own."""
    learning_rate: PositiveFloat
    """The peak that the schedule scales."""
    weight_decay: NonNegativeFloat
    """Applied to the weights of linear, convolutional, attention and recurrent layers only: not to biases, norms, scales, tokens or embeddings."""
    vector_factor: PositiveFloat
    """The learning rate of all parameters without weight decay (biases, norms, ...) as a multiple of the others'."""


class SgdSettings(EveryOptimizer):
    name: Literal["sgd"]
    """`sgd`, `adam`, `adamw` or `muon`; each has keys of its own."""
    momentum: Share
    """sgd only: share of the last update that is kept."""
    nesterov: bool
    """sgd only: look ahead along the momentum, which must then be above 0."""

    @field_validator("nesterov")
    @classmethod
    def looks_along_a_momentum(cls, nesterov: bool, info: ValidationInfo) -> bool:
        if nesterov and info.data.get("momentum") == 0:
            raise ValueError("needs optimizer.momentum above 0: raise it, or write `nesterov: false`")
        return nesterov


class AdamSettings(EveryOptimizer):
    name: Literal["adam", "adamw"]
    """`sgd`, `adam`, `adamw` or `muon`; each has keys of its own."""
    beta1: Share
    """adam and adamw only: decay of the mean of the gradients."""
    beta2: Share
    """adam and adamw only: decay of the mean of their squares."""
    epsilon: PositiveFloat
    """adam and adamw only: added to the root, against division by zero."""


class MuonSettings(EveryOptimizer):
    name: Literal["muon"]
    """`sgd`, `adam`, `adamw` or `muon`; each has keys of its own."""
    outer_factor: PositiveFloat
    """muon only: the learning rate of the first and the last layer's weights as a multiple of the hidden ones'."""
    momentum: Share
    """muon only: share of the last gradients that is kept for the hidden weights."""
    outer_momentum: Share
    """muon only: the same for all other parameters, which move as with sgd."""
    nesterov: bool
    """muon only: look ahead along both momenta, which must then be above 0."""
    iterations: Annotated[int, Field(ge=1, le=100)]
    """muon only: steps of Newton and Schulz's iteration that makes an update orthogonal; 3 to 5 are usual."""
    normalise: bool
    """muon only: bring each hidden weight to a norm of the root of its outputs instead of letting it decay, for layers that a norm follows."""

    @field_validator("nesterov")
    @classmethod
    def looks_along_momenta(cls, nesterov: bool, info: ValidationInfo) -> bool:
        if nesterov and 0 in (info.data.get("momentum"), info.data.get("outer_momentum")):
            raise ValueError("needs optimizer.momentum and optimizer.outer_momentum above 0: raise them, or write `nesterov: false`")
        return nesterov


OptimizerSettings = Annotated[SgdSettings | AdamSettings | MuonSettings, Field(discriminator="name")]
