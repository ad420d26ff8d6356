"""What `train` may read: the model, how it is optimized, and how its batches are made."""

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, ValidationInfo, field_validator

from pipeline.collection import VALID
from pipeline.family import MODELS
from pipeline.params.section import Count, Section, Steps
from pipeline.refusal import Refusal

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pipeline.spec import Spec

    Examples = Callable[[int], Tensor]
    """At most so many train images, from all over the split, as a network reads them: (n, channels, height, width), float32, on the CPU."""

Share = Annotated[float, Field(ge=0, lt=1)]
Precision = Literal["auto", "bf16", "fp16", "fp32", "half"]


class ModelSettings(Section):
    """What every model has; an architecture's own module adds what it alone knows."""

    name: str
    """The architecture: a module of `pipeline/models/`."""

    def build(self, spec: "Spec") -> "nn.Module":
        """A module from (n, channels, height, width) to logits (n, classes)."""
        raise NotImplementedError(f"pipeline/models/{self.name}.py defines no build()")

    def prime(self, network: "nn.Module", examples: "Examples") -> None:
        """Called once before a training begins, and never when a model file is opened: the place for weights that are pretrained or come of the data."""


class SgdSettings(Section):
    name: Literal["sgd"]
    """`sgd`, `adam`, `adamw` or `muon`; each has keys of its own."""
    learning_rate: PositiveFloat
    """The peak that the schedule scales."""
    weight_decay: NonNegativeFloat
    """Not applied to biases and norms (tensors of fewer than two dimensions)."""
    vector_factor: PositiveFloat
    """The learning rate of biases and norms as a multiple of the others'."""
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


class AdamSettings(Section):
    name: Literal["adam", "adamw"]
    """`sgd`, `adam`, `adamw` or `muon`; each has keys of its own."""
    learning_rate: PositiveFloat
    """The peak that the schedule scales."""
    weight_decay: NonNegativeFloat
    """Not applied to biases and norms (tensors of fewer than two dimensions)."""
    vector_factor: PositiveFloat
    """The learning rate of biases and norms as a multiple of the others'."""
    beta1: Share
    """adam and adamw only: decay of the mean of the gradients."""
    beta2: Share
    """adam and adamw only: decay of the mean of their squares."""
    epsilon: PositiveFloat
    """adam and adamw only: added to the root, against division by zero."""


class MuonSettings(Section):
    name: Literal["muon"]
    """`sgd`, `adam`, `adamw` or `muon`; each has keys of its own."""
    learning_rate: PositiveFloat
    """The peak that the schedule scales."""
    weight_decay: NonNegativeFloat
    """Not applied to biases and norms (tensors of fewer than two dimensions)."""
    vector_factor: PositiveFloat
    """The learning rate of biases and norms as a multiple of the others'."""
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


class ConstantSettings(Section):
    name: Literal["constant"]
    """`constant`, `linear`, `cosine` or `one_cycle`; each has keys of its own."""
    warmup: Share
    """Share of the steps over which the learning rate rises to its peak."""


class FallingSettings(Section):
    name: Literal["linear", "cosine"]
    """`constant`, `linear`, `cosine` or `one_cycle`; each has keys of its own."""
    warmup: Share
    """Share of the steps over which the learning rate rises to its peak."""
    final_factor: Share
    """linear, cosine and one_cycle only: the last learning rate as a share of the peak."""


class OneCycleSettings(Section):
    name: Literal["one_cycle"]
    """`constant`, `linear`, `cosine` or `one_cycle`; each has keys of its own."""
    warmup: Share
    """Share of the steps over which the learning rate rises to its peak."""
    start_factor: Share
    """one_cycle only: the first learning rate as a share of the peak."""
    final_factor: Share
    """linear, cosine and one_cycle only: the last learning rate as a share of the peak."""


OptimizerSettings = Annotated[SgdSettings | AdamSettings | MuonSettings, Field(discriminator="name")]
ScheduleSettings = Annotated[ConstantSettings | FallingSettings | OneCycleSettings, Field(discriminator="name")]


class AugmentSettings(Section):
    crop: Annotated[int, Field(ge=0, le=1024)]
    """Pixels of zero padding on every side, out of which a window of the image's size is cut at random; 0 for none."""
    flip: Literal["none", "random", "alternating"]
    """Mirror left and right: `random`, every second sample on average; `alternating`, each sample in every second epoch."""
    cutout: Annotated[int, Field(ge=0, le=65_535)]
    """Side in pixels of a square set to the mean colour at a random place; 0 for none."""

    def refuse_blank_windows(self, spec: "Spec") -> None:
        """Raises Refusal where a window may miss the image; the border would then be most of what is kept in memory, too."""
        side = min(spec.height, spec.width)
        if self.crop >= side:
            raise Refusal(
                f"augment.crop: {self.crop} pixels around images of {spec.height}x{spec.width}, whose windows may then miss the image: "
                f"write at most {side - 1}"
            )


class LoopSettings(Section):
    epochs: Steps | None
    """Length in passes over the train split; null where `steps` says it."""
    steps: Steps | None
    """Length in optimizer updates; null where `epochs` says it."""
    batch_size: Count
    """Samples of one optimizer update, over all micro-batches."""
    micro_batch_size: Count
    """Samples of one forward and backward at most; smaller needs less memory. See docs/training.md for BatchNorm and dropout."""
    precision: Precision
    """`auto` is bf16 on GPUs from compute capability 8.0, fp16 on older ones and fp32 on a CPU; `half` keeps the weights themselves in bf16."""
    deterministic: bool
    """Refuse operations whose result differs from run to run."""
    compile: Literal["off", "default", "graphs"]
    """torch.compile: `graphs` adds CUDA graphs."""
    channels_last: bool
    """Store images and convolutions with the channels innermost, which tensor cores like."""
    activation_checkpointing: bool
    """Compute activations a second time in the backward pass instead of keeping them: less memory, more time, equal bytes."""
    label_smoothing: Share
    """Share of the target spread evenly over all classes."""
    clip_norm: PositiveFloat | None
    """Largest 2-norm of the gradient; null for no limit."""
    on_nonfinite: Literal["stop", "skip"]
    """A step whose loss or gradient is not finite: `stop` ends the training, `skip` goes on without it. fp16 skips and counts in any case."""
    average_decay: Share
    """Decay of the averaged weights (EMA) that are validated and exported in place of the raw ones; 0 for none."""
    report_every_steps: Count
    """Steps between rows of the history."""
    validate_every_steps: Steps
    """Steps between validations; the last step is always validated. A multiple of `report_every_steps`."""
    keep: Literal["best", "last"]
    """Which weights are exported: those of the best validation, or the last."""
    metric: Literal["valid/accuracy", "valid/loss"]
    """What `keep: best` and `patience` look at."""
    patience: PositiveInt | None
    """Stop after this many validations without an improvement; null for never."""

    @field_validator("steps")
    @classmethod
    def says_the_length_once(cls, steps: int | None, info: ValidationInfo) -> int | None:
        if "epochs" in info.data and (steps is None) == (info.data["epochs"] is None):
            raise ValueError("give the length once: a number for `epochs` or for `steps`, and null for the other")
        return steps

    @field_validator("average_decay")
    @classmethod
    def has_digits_to_trail_with(cls, average_decay: float, info: ValidationInfo) -> float:
        if average_decay and info.data.get("precision") == "half":
            raise ValueError("an average in 16 bits would stand still: write 0.0, or another train.precision than `half`")
        return average_decay

    @field_validator("compile")
    @classmethod
    def takes_the_batch_whole(cls, mode: str, info: ValidationInfo) -> str:
        if mode == "graphs" and info.data.get("micro_batch_size") != info.data.get("batch_size"):
            raise ValueError("`graphs` takes a batch whole: write `compile: default`, or a micro_batch_size equal to batch_size")
        return mode

    @field_validator("activation_checkpointing")
    @classmethod
    def is_not_compiled(cls, activation_checkpointing: bool, info: ValidationInfo) -> bool:
        if activation_checkpointing and info.data.get("compile", "off") != "off":
            raise ValueError('does not go with train.compile: write `compile: "off"`, or `activation_checkpointing: false`')
        return activation_checkpointing

    @field_validator("micro_batch_size")
    @classmethod
    def fits_into_the_batch(cls, micro_batch_size: int, info: ValidationInfo) -> int:
        if micro_batch_size > info.data.get("batch_size", micro_batch_size):
            raise ValueError(f"is larger than train.batch_size ({info.data['batch_size']}): write at most that")
        return micro_batch_size

    @field_validator("validate_every_steps")
    @classmethod
    def falls_on_a_report(cls, validate_every_steps: int, info: ValidationInfo) -> int:
        between = info.data.get("report_every_steps", 1)
        if validate_every_steps % between:
            raise ValueError(
                f"is no multiple of train.report_every_steps ({between}): write {-(-validate_every_steps // between) * between}"
            )
        return validate_every_steps

    def refuse_missing_validation(self, splits: Container[str]) -> None:
        """Raises Refusal where `splits` has no valid and something here needs it."""
        needs = {"train.keep: best": self.keep == "best", "train.patience": self.patience is not None}
        for setting, needed in needs.items():
            if needed and VALID not in splits:
                raise Refusal(f"{setting} needs a validation split: set source.valid above 0, or write `keep: last` and `patience: null`")

    def num_steps(self, num_samples: int) -> int:
        """Optimizer updates of a training on a train split of `num_samples`; a last part of a batch is a whole step."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return -(-self.epochs * num_samples // self.batch_size)


class TrainParams(Section):
    seed: NonNegativeInt
    """The one seed: splits, order, initial weights, dropout, augmentation and the bootstrap derive theirs from it."""
    model: Annotated[ModelSettings, MODELS]
    """The architecture: a module of `pipeline/models/`."""
    optimizer: OptimizerSettings
    schedule: ScheduleSettings
    augment: AugmentSettings
    train: LoopSettings

    @field_validator("train")
    @classmethod
    def has_digits_for_its_optimizer(cls, train: LoopSettings, info: ValidationInfo) -> LoopSettings:
        optimizer = info.data.get("optimizer")
        if train.precision == "half" and isinstance(optimizer, AdamSettings):
            raise ValueError(
                f"precision: half has too few digits for the moments of {optimizer.name}: write `precision: auto`, or choose muon or sgd"
            )
        return train
