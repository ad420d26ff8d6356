"""The sections that the stage `train` reads, and the section `train` itself: length, batch size, precision, reports, validation and export."""

from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationInfo, field_validator

from pipeline.core import untrusted
from pipeline.core.raw_dataset import VALID
from pipeline.core.refusal import Refusal
from pipeline.core.registry import LOSSES, MODELS
from pipeline.core.section import Count, Patterns, Section, Share, Steps, ValueOf
from pipeline.inference.params import METRICS, LossSettings, MetricNames, ModelSettings, Precision
from pipeline.train.optimizer_params import AdamSettings, MuonSettings, OptimizerSettings, ScheduleSettings
from pipeline.train.transform_params import TRANSFORMS, TransformSettings

if TYPE_CHECKING:
    from pipeline.core.spec import Inputs, Targets

Strength = Annotated[float, Field(ge=0, le=1)]
"""Strength of a colour change. Factors are drawn from [1 - strength, 1 + strength]; a negative one would invert the image."""
Alpha = Annotated[float, Field(ge=0, le=100)]
COLOURS = 3


class TransformsSettings(Section):
    """The section `augment` with transforms alone, as for texts."""

    transforms: Annotated[tuple[TransformSettings, ...], TRANSFORMS]
    """Further random changes, in this order, each a module of `pipeline/train/augment/transforms/` with its keys, such as
    `[{name: rotate, degrees: 15.0}]`; `[]` for none."""

    ADDED: ClassVar = {"transforms": ()}

    def refuse_other_inputs(self, inputs: "type[Inputs] | Inputs", kind: str, targets: "type[Targets] | Targets") -> None:
        """Raise Refusal if these settings are for other data. `kind` is that of the inputs."""
        if targets.stored == "windows" or inputs.augmented is None:
            data = "each token is a target" if targets.stored == "windows" else f"these inputs are of the kind {kind}"
            raise Refusal(f"augment: applies to images, and to texts with one target each, but {data}: set `augment: null`")

    def refuse_other_transforms(self, kind: str) -> None:
        """Raise Refusal if a transform is for other inputs than those of this kind."""
        for number, transform in enumerate(self.transforms):
            if transform.inputs != kind:
                fitting = [name for name in TRANSFORMS.names if TRANSFORMS.settings(name).inputs == kind]
                raise Refusal(
                    f"augment.transforms.{number}: {transform.name} needs inputs of the kind {transform.inputs}, but these are of the kind {kind}: "
                    f"choose among {', '.join(fitting)}"
                )

    def refuse_misfit(self, height: int, width: int, channels: int) -> None:  # noqa: ARG002  # for crops
        """Raise Refusal if a change does not apply to images with `channels` channels."""
        for number, transform in enumerate(self.transforms):
            if transform.channels and channels not in transform.channels:
                raise Refusal(
                    f"augment.transforms.{number}: {transform.name} needs images of {' or '.join(map(str, transform.channels))} channels, "
                    f"these have {channels}: remove it"
                )


class AugmentSettings(TransformsSettings):
    """The section `augment` of images."""

    crop_padding: Annotated[int, Field(ge=0, le=1024)]
    """Zero-pad each side by this many pixels, then crop a random window of the image's original size; 0 for none."""
    resized_crop: Share
    """Crop a window of random area, aspect ratio (3:4 to 4:3) and position, and resize it to the image's size. The value is the smallest
    area, as a share of the image's area; 0 for none."""
    flip: Literal["none", "random", "alternating"]
    """Horizontal flip: `random` flips each sample with probability 0.5, `alternating` flips each sample in every second epoch."""
    brightness: Strength
    """Multiply the colours by a random factor from [1 - value, 1 + value]; 0 for none. For one or three channels."""
    contrast: Strength
    """Multiply the difference between the colours and the image's mean grey by a random factor from [1 - value, 1 + value]; 0 for none. For one or three channels."""
    saturation: Strength
    """Multiply the difference between each pixel's colour and its grey by a random factor from [1 - value, 1 + value]; 0 for none. For
    three channels."""
    cutout: Annotated[int, Field(ge=0, le=65_535)]
    """Side in pixels of a square at a random position that is set to the mean colour; 0 for none."""
    mixup: Alpha
    """Alpha of mixup: blend each sample with its partner, the sample at the mirrored position of the batch. The partner's
    share is drawn from Beta(alpha, alpha); 0 for none."""
    cutmix: Alpha
    """Alpha of CutMix: replace a rectangle by the same rectangle of the partner, the sample at the mirrored position of the batch. The
    rectangle's share of the image's area is drawn from Beta(alpha, alpha); 0 for none. With `mixup`, each sample gets one of the two at
    random.
    """

    @field_validator("resized_crop")
    @classmethod
    def refuse_two_crops(cls, resized_crop: float, info: ValidationInfo) -> float:
        if resized_crop and info.data.get("crop_padding"):
            raise ValueError(
                "cannot be combined with augment.crop_padding: write `augment.crop_padding: 0`, or `augment.resized_crop: 0.0`"
            )
        return resized_crop

    def refuse_other_inputs(self, inputs: "type[Inputs] | Inputs", kind: str, targets: "type[Targets] | Targets") -> None:
        super().refuse_other_inputs(inputs, kind, targets)
        if inputs.augmented != "pixels":
            raise Refusal(
                f"augment: crops, flips and colours are for images, but these inputs are of the kind {kind}: set `augment: null`, or keep the key `transforms` alone"
            )

    def refuse_misfit(self, height: int, width: int, channels: int) -> None:
        """Raise Refusal if a crop could contain only padding, or if a change does not apply to images with `channels` channels."""
        super().refuse_misfit(height, width, channels)
        side = min(height, width)
        if self.crop_padding >= side:  # the padded images in memory would be mostly border, too
            raise Refusal(
                f"augment.crop_padding: {self.crop_padding} pixels of padding around images of {height}x{width} are too many, because a crop could contain only padding: "
                f"write at most {side - 1}"
            )
        for name, strength in {"brightness": self.brightness, "contrast": self.contrast, "saturation": self.saturation}.items():
            fitting = (COLOURS,) if name == "saturation" else (1, COLOURS)
            if strength and channels not in fitting:
                raise Refusal(
                    f"augment.{name}: needs images of {' or '.join(map(str, fitting))} channels, these have {channels}: write 0.0"
                )


Lanes = Annotated[int, Field(ge=1, le=1024)]
UNSHARDED: dict[str, tuple[tuple[str | bool, ...], str]] = {
    "precision": (("fp16",), "train.precision: auto"),
    "compile": (("default", "graphs"), 'train.compile: "off"'),
    "channels_last": ((True,), "train.channels_last: false"),
    "on_nonfinite": (("skip",), "train.on_nonfinite: stop"),
}
"""Values that torch's FSDP2 or its fused optimizers do not support together with `train.sharding: full`, and what to write instead."""


class LoopSettings(Section):
    epochs: Steps | None
    """Length of training in passes over the train split; null if `steps` is set."""
    steps: Steps | None
    """Length of training in optimizer steps; null if `epochs` is set."""
    batch_size: Count
    """Samples per optimizer step, summed over all micro-batches."""
    micro_batch_size: Count
    """Largest number of samples per forward and backward pass; a smaller number needs less memory. docs/training.md explains its effect on
    BatchNorm and dropout.
    """
    lanes: Lanes
    """Number of equal parts of a batch whose gradients are added in a fixed order: 1, or a power of two. The result is the same, to the
    bit, for every number of processes that divides it."""
    sharding: Literal["none", "full"]
    """Division of the weights among several processes: `none` keeps all weights in each of them, `full` divides weights, gradients and
    optimizer state (FSDP2), for models that are too large for one GPU."""
    precision: Precision
    """Mixed precision: `auto` is bf16 on GPUs from compute capability 8.0, fp16 on older ones and fp32 on a CPU; `bf16-true` keeps the weights
    themselves in bf16."""
    deterministic: bool
    """Raise an error for operations whose result differs from run to run. `false` also lets cuDNN try its algorithms, and use the fastest."""
    compile: Literal["off", "default", "graphs"]
    """Use of torch.compile: `off` for none, `default` compiles the network, `graphs` lets the compiler add CUDA graphs of the network (on a CPU, it is the
    same as `default`)."""
    channels_last: Literal["auto", True, False]
    """Use the channels-last memory format for images and convolutions. `auto` uses it where it is expected to be faster: for convolutional networks on
    a CPU, and on GPUs in 16 bits."""
    activation_checkpointing: bool
    """Recompute activations in the backward pass instead of storing them: less memory, more time, bit-identical results."""
    clip_norm: PositiveFloat | None
    """Clip the gradient to this 2-norm; null for no clipping."""
    on_nonfinite: Literal["stop", "skip", "finish"]
    """After a step with a non-finite loss or gradient, `stop` ends the training without a model, `skip` omits that step, and `finish` ends the
    training with the weights of the best validation so far. fp16 always skips and counts such steps."""
    ema_decay: Share
    """Decay of the EMA of the weights, which is validated and exported in place of the raw weights; 0 for none."""
    report_every_steps: Count
    """Steps between rows of the training history, `plots/train/history.csv`."""
    validate_every_steps: Steps
    """Steps between validations; the last step is always validated. Must be a multiple of `report_every_steps`."""
    freeze: Patterns
    """Patterns such as `features.*` of the names of parameters that are not trained, `[]` for none. `*` also matches dots. The names are
    those in the model file. A BatchNorm of which all parameters are frozen keeps its running statistics."""
    export_weights: Literal["best", "last"]
    """The weights to export: those of the best validation, or those of the last step."""
    metrics: MetricNames
    """Further metrics of a validation, such as `[cohen_kappa, auroc]`: modules of `pipeline/inference/metrics/`; `[]` for none."""
    metric: str
    """The metric that `export_weights: best` and `patience` compare: `valid/loss`, or another metric of the task or of `metrics`, such as `valid/accuracy`. With
    classes of unequal size, `valid/macro_f1` gives each class the same weight."""
    patience: PositiveInt | None
    """Stop after this many validations without an improvement; null for never."""

    ADDED: ClassVar = {"metrics": ()}

    @field_validator("export_weights")
    @classmethod
    def require_best_to_finish(cls, export_weights: str, info: ValidationInfo) -> str:
        if export_weights != "best" and info.data.get("on_nonfinite") == "finish":
            raise ValueError(
                "train.on_nonfinite: finish needs the weights of the best validation: write `best`, or set train.on_nonfinite to `stop`"
            )
        return export_weights

    @field_validator("steps")
    @classmethod
    def require_one_length(cls, steps: int | None, info: ValidationInfo) -> int | None:
        if "epochs" in info.data and (steps is None) == (info.data["epochs"] is None):
            raise ValueError("set either `epochs` or `steps`, and write null for the other")
        return steps

    @field_validator("ema_decay")
    @classmethod
    def refuse_ema_of_bf16_weights(cls, ema_decay: float, info: ValidationInfo) -> float:
        if ema_decay and info.data.get("precision") == "bf16-true":
            raise ValueError(
                "an EMA in bf16 would lose its small updates by rounding: write 0.0, or set train.precision to another value than `bf16-true`"
            )
        return ema_decay

    @field_validator("lanes")
    @classmethod
    def refuse_unequal_lanes(cls, lanes: int, info: ValidationInfo) -> int:
        if lanes & (lanes - 1):
            raise ValueError(f"is not a power of two: write {1 << lanes.bit_length()} or {1 << lanes.bit_length() - 1}")
        batch_size = info.data.get("batch_size", lanes)
        if batch_size % lanes:
            raise ValueError(
                f"does not divide train.batch_size ({batch_size}): write another number of lanes, or a multiple of {lanes} as batch_size"
            )
        return lanes

    @field_validator("sharding")
    @classmethod
    def refuse_sharded_lanes(cls, sharding: str, info: ValidationInfo) -> str:
        if sharding == "full" and info.data.get("lanes", 1) > 1:
            raise ValueError("`full` works with one lane only: write `train.lanes: 1`, or `train.sharding: none`")
        return sharding

    @field_validator(*UNSHARDED)
    @classmethod
    def refuse_unsharded(cls, value: str | bool, info: ValidationInfo) -> str | bool:
        refused, instead = UNSHARDED[str(info.field_name)]
        if value in refused and info.data.get("sharding") == "full":
            raise ValueError(f"cannot be combined with train.sharding: full: write `{instead}`, or `train.sharding: none`")
        return value

    @field_validator("compile")
    @classmethod
    def refuse_graphs_of_micro_batches(cls, mode: str, info: ValidationInfo) -> str:
        if mode == "graphs" and info.data.get("micro_batch_size") != info.data.get("batch_size"):
            raise ValueError("`graphs` needs micro_batch_size equal to batch_size: write `train.compile: default`, or make them equal")
        if mode == "graphs" and info.data.get("lanes", 1) > 1:
            raise ValueError("`graphs` needs one lane: write `train.compile: default`, or `train.lanes: 1`")
        return mode

    @field_validator("activation_checkpointing")
    @classmethod
    def refuse_compiled_checkpointing(cls, activation_checkpointing: bool, info: ValidationInfo) -> bool:
        if activation_checkpointing and info.data.get("compile", "off") != "off":
            raise ValueError(
                'cannot be combined with train.compile: write `train.compile: "off"`, or `train.activation_checkpointing: false`'
            )
        return activation_checkpointing

    @field_validator("micro_batch_size")
    @classmethod
    def refuse_larger_than_batch(cls, micro_batch_size: int, info: ValidationInfo) -> int:
        if micro_batch_size > info.data.get("batch_size", micro_batch_size):
            raise ValueError(f"is larger than train.batch_size: write at most {info.data['batch_size']}")
        return micro_batch_size

    @field_validator("validate_every_steps")
    @classmethod
    def require_multiple_of_reports(cls, validate_every_steps: int, info: ValidationInfo) -> int:
        interval = info.data.get("report_every_steps", 1)
        if validate_every_steps % interval:
            next_multiple = -(-validate_every_steps // interval) * interval
            raise ValueError(f"is not a multiple of train.report_every_steps ({interval}): write {next_multiple}")
        return validate_every_steps

    def refuse_missing_validation(self, splits: Container[str]) -> None:
        """Raise Refusal if `splits` has no validation split, but `export_weights: best` or `patience` needs one."""
        needs = {"train.export_weights: best": self.export_weights == "best", "train.patience": self.patience is not None}
        for setting, needed in needs.items():
            if needed and VALID not in splits:
                raise Refusal(
                    f"{setting} needs a validation split: set source.valid above 0, or write `train.export_weights: last` and `train.patience: null`"
                )

    def refuse_undivided(self, num_processes: int) -> None:
        """Raise Refusal if the lanes or the batch cannot be shared equally by `num_processes` processes."""
        if num_processes == 1:
            return
        if self.lanes > 1 and self.lanes % num_processes:
            raise Refusal(
                f"train.lanes: {self.lanes} lanes cannot be shared equally by {num_processes} processes: "
                "change PIPELINE_PROCESSES, or write `train.lanes: 1`"
            )
        if self.batch_size % num_processes:
            raise Refusal(
                f"train.batch_size: {self.batch_size} samples cannot be shared equally by {num_processes} processes: "
                f"write a multiple of {num_processes}, or change PIPELINE_PROCESSES"
            )
        if self.compile == "graphs":
            raise Refusal("train.compile: `graphs` works with one process only: write `train.compile: default`")

    def refuse_unknown_metric(self, metrics: Iterable[str]) -> None:
        """Raise Refusal if `metric` is not among `metrics`, those of a validation."""
        known, name = [f"valid/{name}" for name in metrics], self.metric.removeprefix("valid/")
        if self.metric in known:
            return
        if name in METRICS.names:
            raise Refusal(f"train.metric: no validation measures {name}: add it to train.metrics, or choose one of {', '.join(known)}")
        raise Refusal(f"train.metric: there is no metric {untrusted.shown(self.metric, 60)}: choose one of {', '.join(known)}")

    def num_steps(self, num_samples: int) -> int:
        """Return the number of optimizer steps of the whole training; `num_samples` is the size of the train split.

        It is `steps` if that is set. Otherwise it is `epochs` times `num_samples`, divided by the batch size and rounded up.
        """
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return -(-self.epochs * num_samples // self.batch_size)


class TrainParams(Section):
    seed: NonNegativeInt
    """Seed of the random numbers of a training: of sample order, initial weights, dropout and augmentation. `source.seed` draws the splits."""
    model: Annotated[ModelSettings, MODELS]
    """The architecture: a module of `pipeline/models/`."""
    loss: Annotated[LossSettings, LOSSES]
    """The loss that a training minimises: a module of `pipeline/losses/`."""
    optimizer: OptimizerSettings
    schedule: ScheduleSettings
    augment: AugmentSettings | TransformsSettings | None
    """Random changes to training samples; null for none. For texts, the section has no other key than `transforms`."""
    train: LoopSettings

    ADDED: ClassVar = {"loss": {"name": "cross_entropy", "class_weights": "none", "label_smoothing": ValueOf("train.label_smoothing")}}

    @field_validator("train")
    @classmethod
    def refuse_misfit(cls, train: LoopSettings, info: ValidationInfo) -> LoopSettings:
        loss, optimizer = info.data.get("loss"), info.data.get("optimizer")
        if isinstance(loss, LossSettings) and not loss.is_measured and (train.export_weights == "best" or train.patience is not None):
            raise ValueError(
                f"export_weights: {loss.name} with these settings makes {train.metric} worse, by which `best` and `train.patience` choose: write "
                "`train.export_weights: last` and `train.patience: null`"
            )
        if train.precision == "bf16-true" and isinstance(optimizer, AdamSettings):
            raise ValueError(
                f"precision: bf16-true would round away small updates of {optimizer.name}'s running averages: "
                "write `train.precision: auto`, or set optimizer.name to muon or sgd"
            )
        if train.sharding == "full" and isinstance(optimizer, MuonSettings):
            raise ValueError(
                "sharding: full divides the matrices that muon orthogonalises as a whole: write `train.sharding: none`, or set optimizer.name to adamw or sgd"
            )
        return train
