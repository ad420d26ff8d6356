"""The sections `optimizer` and `schedule`: the optimizer with its hyperparameters, and the learning rate at each step as a share of its peak."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, ValidationInfo, field_validator

from pipeline.core.section import Patterns, Section, Share


class GroupSettings(Section):
    """Settings of one group of the network's parameters: all parameters whose names match at least one of `patterns`."""

    patterns: Annotated[Patterns, Field(min_length=1)]
    """Patterns such as `features.*` of the parameters' names in the model file. `*` also matches dots."""
    lr_scale: PositiveFloat
    """Learning-rate scale of these parameters, on top of all other scales."""
    weight_decay: NonNegativeFloat | None
    """Weight decay instead of `optimizer.weight_decay`, for those of these parameters that have weight decay; null for `optimizer.weight_decay`."""


class CommonOptimizerSettings(Section):
    name: str
    """`sgd`, `adam`, `adamw` or `muon`; each has keys of its own."""
    learning_rate: PositiveFloat
    """Peak learning rate; the schedule scales it at each step."""
    weight_decay: NonNegativeFloat
    """Weight decay of linear, convolutional, attention and recurrent weights; biases, norms, scales, tokens and embeddings have none."""
    bias_lr_scale: PositiveFloat
    """Learning-rate scale of all parameters without weight decay (biases, norms, ...), relative to the others."""
    layer_decay: Annotated[float, Field(gt=0, le=1)] | None
    """Factor by which the learning rate falls from each block of the network to the block before it, beginning at 1 for the head; null for
    the same learning rate in all blocks."""
    groups: tuple[GroupSettings, ...]
    """Groups of parameters with another learning rate or weight decay, each with `patterns`, `lr_scale` and `weight_decay`; `[]` for none.
    A parameter belongs to the first group that matches it."""

    RECOMMENDED: ClassVar = {"bias_lr_scale": 1.0, "layer_decay": None, "groups": []}

    @field_validator("nesterov", check_fields=False)
    @classmethod
    def require_momentum(cls, nesterov: bool, info: ValidationInfo) -> bool:
        if nesterov and (zero := [name for name in ("momentum", "sgd_momentum") if info.data.get(name) == 0]):
            raise ValueError(f"needs optimizer.{zero[0]} above 0: raise it, or write `optimizer.nesterov: false`")
        return nesterov


class SgdSettings(CommonOptimizerSettings):
    name: Literal["sgd"]
    """`sgd`, `adam`, `adamw` or `muon`; each has keys of its own."""
    momentum: Share
    """sgd only: momentum, the share of the previous update that is kept."""
    nesterov: bool
    """sgd only: use Nesterov momentum; needs `momentum` above 0."""

    RECOMMENDED: ClassVar = {"learning_rate": 0.1, "weight_decay": 5e-4, "momentum": 0.9, "nesterov": True}


class AdamSettings(CommonOptimizerSettings):
    name: Literal["adam", "adamw"]
    """`sgd`, `adam`, `adamw` or `muon`; each has keys of its own."""
    beta1: Share
    """adam and adamw only: decay of the running mean of the gradients."""
    beta2: Share
    """adam and adamw only: decay of the running mean of the squared gradients."""
    epsilon: PositiveFloat
    """adam and adamw only: added to the denominator to prevent division by zero."""

    RECOMMENDED: ClassVar = {"learning_rate": 1e-3, "weight_decay": 0.01, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8}
    RECOMMENDED_FOR: ClassVar = {"adam": {"weight_decay": 0.0}}


class MuonSettings(CommonOptimizerSettings):
    name: Literal["muon"]
    """`sgd`, `adam`, `adamw` or `muon`; each has keys of its own."""
    outer_lr_scale: PositiveFloat
    """muon only: learning-rate scale of the first and the last layer's weights, relative to the hidden weights."""
    momentum: Share
    """muon only: momentum of the hidden weights."""
    sgd_momentum: Share
    """muon only: momentum of all other parameters, which are updated by SGD."""
    nesterov: bool
    """muon only: use Nesterov momentum; needs `momentum` and `sgd_momentum` above 0."""
    ns_steps: Annotated[int, Field(ge=1, le=100)]
    """muon only: Newton-Schulz iterations to orthogonalise an update; 3 to 5 are usual."""
    normalize_weights: bool
    """muon only: rescale each hidden weight to norm sqrt(out_features) instead of applying weight decay. Suits layers
    that are followed by a normalisation layer."""

    RECOMMENDED: ClassVar = {
        "learning_rate": 0.02,
        "weight_decay": 0.01,
        "bias_lr_scale": 5.0,
        "outer_lr_scale": 5.0,
        "momentum": 0.95,
        "sgd_momentum": 0.9,
        "nesterov": True,
        "ns_steps": 5,
        "normalize_weights": False,
    }

    @field_validator("normalize_weights")
    @classmethod
    def refuse_decay_of_groups(cls, normalize_weights: bool, info: ValidationInfo) -> bool:
        if normalize_weights and any(group.weight_decay is not None for group in info.data.get("groups", ())):
            raise ValueError(
                "rescales the hidden weights instead of applying weight decay, so no group can have a weight decay of its own: "
                "write `weight_decay: null` in each of optimizer.groups, or `optimizer.normalize_weights: false`"
            )
        return normalize_weights


OptimizerSettings = Annotated[SgdSettings | AdamSettings | MuonSettings, Field(discriminator="name")]


class CommonScheduleSettings(Section):
    name: str
    """`constant`, `linear`, `cosine`, `one_cycle` or `wsd`; each has keys of its own."""
    warmup_ratio: Share
    """constant, linear, cosine and one_cycle only: share of all steps over which the learning rate rises to its peak."""

    RECOMMENDED: ClassVar = {"warmup_ratio": 0.05}


class ConstantSettings(CommonScheduleSettings):
    name: Literal["constant"]
    """`constant`, `linear`, `cosine`, `one_cycle` or `wsd`; each has keys of its own."""


class DecaySettings(CommonScheduleSettings):
    name: Literal["linear", "cosine"]
    """`constant`, `linear`, `cosine`, `one_cycle` or `wsd`; each has keys of its own."""
    final_factor: Share
    """linear, cosine, one_cycle and wsd only: final learning rate as a share of the peak."""

    RECOMMENDED: ClassVar = {"final_factor": 0.0}


class OneCycleSettings(CommonScheduleSettings):
    name: Literal["one_cycle"]
    """`constant`, `linear`, `cosine`, `one_cycle` or `wsd`; each has keys of its own."""
    start_factor: Share
    """one_cycle only: initial learning rate as a share of the peak."""
    final_factor: Share
    """linear, cosine, one_cycle and wsd only: final learning rate as a share of the peak."""

    RECOMMENDED: ClassVar = {"warmup_ratio": 0.2, "start_factor": 0.04, "final_factor": 0.0}


class WsdSettings(Section):
    name: Literal["wsd"]
    """`constant`, `linear`, `cosine`, `one_cycle` or `wsd`; each has keys of its own."""
    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000_000_000)]
    """wsd only: number of steps over which the learning rate rises to its peak."""
    decay_ratio: Share
    """wsd only: share of all steps, at the end, over which the learning rate falls from its peak."""
    final_factor: Share
    """linear, cosine, one_cycle and wsd only: final learning rate as a share of the peak."""

    RECOMMENDED: ClassVar = {"warmup_steps": 100, "decay_ratio": 0.2, "final_factor": 0.0}

    def decay_steps(self, num_steps: int) -> int:
        """Return the number of steps below the peak at the end of a training of `num_steps`."""
        return min(round(self.decay_ratio * num_steps), num_steps - 1)


ScheduleSettings = Annotated[ConstantSettings | DecaySettings | OneCycleSettings | WsdSettings, Field(discriminator="name")]
