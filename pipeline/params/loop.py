"""The section `train`: how long, in what parts and how precisely the loop trains, and what it keeps."""

from collections.abc import Container
from typing import Literal

from pydantic import PositiveFloat, PositiveInt, ValidationInfo, field_validator

from pipeline.params.section import Count, Section, Share, Steps
from pipeline.raw_dataset import VALID
from pipeline.refusal import Refusal

Precision = Literal["auto", "bf16", "fp16", "fp32", "half"]


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
