"""The sections `model` and `loss`: the base classes of the settings of every architecture and of every loss; the metrics that parameters
name, and the libraries that models need.
"""

import importlib
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator

from pipeline.core.raw_dataset import VALID
from pipeline.core.refusal import Refusal
from pipeline.core.registry import LOSSES, Registry, missing_method
from pipeline.core.section import Section

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from pipeline.core.spec import Inputs, Spec, Targets

    Validated = Callable[[], tuple[Tensor, Tensor]]
    """A function that returns the outputs and the targets of the whole validation split."""
    Examples = Callable[[int], Tensor]
    """A function that returns at most the given number of train samples, spread over the split, preprocessed for the network. Images are
    (n, channels, height, width), float32, on the CPU."""


METRICS = Registry("pipeline.inference.metrics", "metric", needs_torch=True)
MetricNames = Annotated[tuple[str, ...], AfterValidator(METRICS.known)]
"""Names of metrics over a split: modules of `pipeline/inference/metrics/`."""
Precision = Literal["auto", "bf16", "fp16", "fp32", "bf16-true"]
"""The values of `train.precision`."""
WEIGHTS_FOLDER = Path("data/weights")
"""The folder of the files and folders that `model.weights` names. dvc.yaml has it too: DVC replaces `data/weights/${model.weights}` by `data/weights/None`
if the parameter is null, and needs a file with this name."""
NO_WEIGHTS = "None"
PICKLES = (".pth", ".pt", ".bin", ".ckpt", ".pkl")


class ModelSettings(Section):
    """The settings and methods that every model has. Each architecture adds its own settings in its module, in `pipeline/models/`."""

    name: str
    """The architecture: a module of `pipeline/models/`."""
    weights: Path | None
    """A file in `data/weights/` to start from, such as `base.safetensors`: a model file of this pipeline, or tensors by name; null for none. It may
    also be a folder of such files, which together have the tensors. docs/fine-tuning.md explains which tensors are taken."""

    RECOMMENDED: ClassVar = {"weights": None}

    @field_validator("weights")
    @classmethod
    def refuse_other_files(cls, weights: Path | None) -> Path | None:
        if weights is None:
            return None
        if weights == Path(NO_WEIGHTS):
            raise ValueError("should be the name of a file or folder, or null: write `weights: null`")
        if weights.is_absolute() or ".." in weights.parts:
            raise ValueError(f"should be a path inside {WEIGHTS_FOLDER}/: copy the file into this folder, and write its name")
        if weights.suffix in PICKLES:
            raise ValueError(
                "is a pickle, which can run any code when it is read: convert it, as docs/fine-tuning.md shows, and write the name of the `.safetensors` file"
            )
        return weights

    @property
    def weights_file(self) -> Path | None:
        """Return the path of the file that `model.weights` names, whose weights a training starts from. Return None if the key is null."""
        return None if self.weights is None else WEIGHTS_FOLDER / self.weights

    @property
    def title(self) -> str:
        """Return the name of the architecture for messages."""
        return self.name

    def normalized(self, inputs: "Inputs") -> "Inputs":
        """Return the inputs with the mean and the standard deviation by which this model normalizes images: those of the data, unless overridden."""
        return inputs

    def adapted(self, tensors: "dict[str, Tensor]", spec: "Spec") -> "dict[str, Tensor] | None":  # noqa: ARG002  # for the models
        """Return `tensors`, which another program wrote, with the names and shapes of the network for `spec`.

        A tensor that belongs to the classes of the file keeps its shape. Raises RuntimeError if the tensors belong to another architecture.
        This base class returns None: names and shapes must be those of the network.
        """
        return None

    def build(self, spec: "Spec") -> "nn.Module":  # noqa: ARG002  # for the models
        """Build the network, a module that maps preprocessed inputs, such as images (n, channels, height, width), to (n, spec.num_outputs).

        A language model has outputs for every token: (n, length, spec.num_outputs).
        """
        raise missing_method(type(self), "build(self, spec)")

    def initialize_weights(self, network: "nn.Module", examples: "Examples") -> None:
        """Initialise the network with published weights, or with weights computed from the data. This base class leaves the network
        unchanged.

        `examples(n)` returns at most n preprocessed train samples, from which weights can be computed. If the key `model.weights` names a
        file, the tensors of that file replace the initialised weights afterwards. Called once, when a training begins, and never when a
        model file is opened.
        """

    def refuse_missing_weights(self) -> None:
        """Raise Refusal if a training needs `model.weights`, and the key is null. Not called to measure steps. This base class does nothing."""

    def add_updates(self, network: "nn.Module", untrained: frozenset[str]) -> None:
        """Add parameters to the network that are trained in place of its own, and freeze its own, but those named in `untrained`.

        The file of `model.weights` has no tensors for `untrained`. Called once, before a training begins or is resumed, and never when a
        model file is opened. This base class leaves the network unchanged.
        """

    def merged(self, tensors: "dict[str, Tensor]", spec: "Spec") -> "dict[str, Tensor]":  # noqa: ARG002  # for the models
        """Return the tensors of the network that `build` returns, from `tensors` of one that `add_updates` has changed, on the host.

        `tensors` is empty in all processes but the one that writes the model file. This base class returns `tensors`.
        """
        return tensors

    @property
    def downloaded(self) -> bool:
        """Return True if `initialize_weights` needs files from the internet. Only then does the command `check` call `fetch`."""
        return False

    def fetch(self) -> None:
        """Download the files that `initialize_weights` needs, unless they exist. Then read them, so that a damaged file is found early.

        Raises Refusal with the remedy if the download or the reading fails. This base class does nothing.
        """


def library(name: str, version: str, place: str = "") -> Any:
    """Return the module `name`, a library of the extra `hub`, which models need beyond requirements.lock. Raises Refusal if it is not installed,
    or has another version than `version`, which decides results.

    The message begins with `place`, such as `model.name: `. A validator needs none, because pydantic names the parameter.
    """
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        found = "none"
    if found != version:
        raise Refusal(f"{place}this model needs {name} {version}, but {found} is installed: run `make setup-hub`")
    return importlib.import_module(name)


class LossSettings(Section):
    """The settings and methods that every loss of a training has. Each loss adds its own settings in its module, in `pipeline/losses/`.

    A loss of classes extends `ClassLossSettings`. All losses are computed on the device, without host synchronisation.
    """

    forms: ClassVar[tuple[str, ...]] = ()
    """The forms of targets that this loss compares: see `Targets.form`."""

    name: str
    """The loss that a training minimises: a module of `pipeline/losses/`."""

    @property
    def is_measured(self) -> bool:
        """Return False if the metrics of a validation may get worse while this loss gets better."""
        return True

    @classmethod
    def fits(cls, targets: "type[Targets] | Targets") -> bool:
        """Return True if this is a loss of such targets: of one of its `forms`."""
        if not cls.forms:
            raise missing_method(cls, "fits(cls, targets)")
        return targets.form in cls.forms

    def refuse_missing_splits(self, splits: Iterable[str]) -> None:
        """Raise Refusal if a setting needs a split that is not among `splits`. This base class does nothing."""

    def summed(self, outputs: "Tensor", targets: "Tensor", weights: "Tensor | None") -> "Tensor":  # noqa: ARG002  # for the losses
        """Return the loss, summed over all targets.

        `outputs` are those of the model, in float32 at least, and `weights` what the method `weights` returned.
        """
        raise missing_method(type(self), "summed(self, outputs, targets, weights)")

    def weights(self, targets: "NDArray[Any]", num_outputs: int) -> "Tensor | None":  # noqa: ARG002  # for losses with weights
        """Return the weights that `summed` gets, from `targets`, the stored targets of the train split, or None, as this base class does."""
        return None

    def of_guessing(self, num_outputs: int) -> float:  # noqa: ARG002  # for the losses
        """Return the loss of a target for a model that has learned nothing."""
        raise missing_method(type(self), "of_guessing(self, num_outputs)")

    def of_shape(self, losses: "Tensor", outputs: "Tensor", method: str) -> "Tensor":
        """Return `losses`, which `method` has returned. Raises Refusal if it is not one for each of the `outputs`."""
        if losses.shape != outputs.shape:
            shapes = f"a tensor of shape {tuple(losses.shape)} for {tuple(outputs.shape)}"
            raise Refusal(f"{LOSSES.path(self.name)}: `{method}` returns {shapes}: return one loss for each, and sum up nothing")
        return losses

    def decided(self, targets: "Targets", validated: "Validated") -> "Targets":  # noqa: ARG002  # for losses with decisions
        """Return the description of the targets for the model file: with what the outputs of the exported weights decide, such as thresholds.

        `validated()` returns the outputs and the targets of the validation split. This base class returns `targets`.
        """
        return targets

    def refuse_misfit(self, targets: "type[Targets] | Targets") -> None:
        """Raise Refusal if this loss cannot be used for such targets."""
        if not self.fits(targets):
            fitting = [name for name in LOSSES.names if LOSSES.settings(name).fits(targets)]
            choice = " or ".join(f"`python -m pipeline set loss={name}`" for name in fitting)
            raise Refusal(
                f"loss.name: {self.name} is not a loss of this task: {f'run {choice}' if choice else 'add one, as docs/extending.md explains'}"
            )


class ClassLossSettings(LossSettings):
    """The settings and methods that every loss of classes has. In all methods, `logits` are (n, classes)."""

    class_weights: Literal["none", "balanced"]
    """Weights of the classes in this loss: `none` for equal ones. With `balanced`, the weight of a class is inversely proportional to its number
    of train samples, and the mean weight of these samples is 1. Must be `none` for a task without classes."""

    forms: ClassVar[tuple[str, ...]] = ("class",)
    RECOMMENDED: ClassVar = {"class_weights": "none"}

    def weights(self, targets: "NDArray[Any]", num_outputs: int) -> "Tensor | None":
        """Return a weight for each class (classes,), inversely proportional to its number of `targets`, if the weights are balanced.

        A class without targets has the weight 0: its target probability, from label smoothing, then counts nowhere.
        """
        if self.class_weights == "none":
            return None
        import numpy as np
        import torch  # late: parameters are read without torch

        counts = np.bincount(targets, minlength=num_outputs)
        mean = len(targets) / np.count_nonzero(counts)
        return torch.tensor(np.divide(mean, counts, out=np.zeros(num_outputs), where=counts > 0), dtype=torch.float32)

    def of_classes(self, logits: "Tensor") -> "Tensor":  # noqa: ARG002  # for the losses
        """Return the loss (n, classes) that each class would have if it were the target."""
        raise missing_method(type(self), "of_classes(self, logits)")

    def summed(self, logits: "Tensor", targets: "Tensor", weights: "Tensor | None") -> "Tensor":
        """Return the loss, summed over all targets that are not IGNORED.

        `targets` are class numbers (n,), or class probabilities (n, classes) in floating point, which weight the losses of the classes.
        `weights` (classes,) multiply the losses of the classes; None is for equal weights.
        """
        from torch.nn import functional  # late: parameters are read without torch

        losses = self.of_shape(self.of_classes(logits), logits, "of_classes")
        if targets.is_floating_point():
            return (losses * targets if weights is None else losses * targets * weights).sum()
        return functional.nll_loss(-losses, targets, weights, reduction="sum")

    def of_guessing(self, num_outputs: int) -> float:
        """Return the loss of a target for a model that has learned nothing: one that gives all classes equal probability."""
        import torch

        return float(self.summed(torch.zeros(1, num_outputs, dtype=torch.float64), torch.zeros(1, dtype=torch.int64), None))


class LabelLossSettings(LossSettings):
    """The settings and methods that every loss of labels has. Outputs are logits, and targets 0 or 1 or, if samples are mixed, shares between (n, labels)."""

    positive_weights: Literal["none", "balanced"]
    """The weight of a label that a sample has: `none` for 1, as that of a label that it lacks. With `balanced`, it is the number of train samples
    without the label, divided by that of those with it, so that both count alike in total."""

    threshold: Literal["tuned"] | Annotated[float, Field(gt=0, lt=1)]
    """The probability above which a label is predicted, which the model file keeps: a number such as 0.5, or `tuned` for that of each label with
    the highest F1 on the validation split, which the exported weights give. Validations count with 0.5."""

    forms: ClassVar[tuple[str, ...]] = ("labels",)
    RECOMMENDED: ClassVar = {"positive_weights": "none", "threshold": 0.5}

    def refuse_missing_splits(self, splits: Iterable[str]) -> None:
        if self.threshold == "tuned" and VALID not in splits:
            raise Refusal("loss.threshold: tuned needs a validation split: set source.valid above 0, or write 0.5")

    def weights(self, targets: "NDArray[Any]", num_outputs: int) -> "Tensor | None":  # noqa: ARG002  # the targets have as many columns
        """Return the weight of each label (labels,) where a sample has it; None if all are 1."""
        if self.positive_weights == "none":
            return None
        import numpy as np
        import torch  # late: parameters are read without torch

        present = targets.sum(axis=0, dtype=np.int64)
        return torch.tensor((len(targets) - present) / present, dtype=torch.float32)  # some samples have each label: `refuse_unlearnable`

    def of_present(self, logits: "Tensor") -> "Tensor":  # noqa: ARG002  # for the losses
        """Return the loss of each label (n, labels) for samples that have it. With the negative logits, it is that of samples that lack it."""
        raise missing_method(type(self), "of_present(self, logits)")

    def summed(self, outputs: "Tensor", targets: "Tensor", weights: "Tensor | None") -> "Tensor":
        present, missing = (self.of_shape(self.of_present(logits), logits, "of_present") for logits in (outputs, -outputs))
        return missing.lerp(present if weights is None else present * weights, targets).sum()

    def of_guessing(self, num_outputs: int) -> float:  # noqa: ARG002  # the mean over the labels
        """Return the loss of a label for a model that has learned nothing: one that gives each the probability 1/2."""
        import torch  # late: parameters are read without torch

        return float(self.of_present(torch.zeros((), dtype=torch.float64)))

    def decided(self, targets: "Targets", validated: "Validated") -> "Targets":
        """Return `targets` with the threshold of each label."""
        if self.threshold != "tuned":
            return targets.model_copy(update={"thresholds": (self.threshold,) * len(targets.output_names)})
        from pipeline.inference import scores  # late: reading parameters needs no NumPy

        logits, actual = validated()
        # the probabilities are those that the last layer of the model file gives
        found = scores.best_thresholds(actual.long().cpu().numpy(), logits.float().sigmoid().double().cpu().numpy())
        return targets.model_copy(update={"thresholds": tuple(found)})


class NumberLossSettings(LossSettings):
    """The settings and methods that every loss of numbers has. Outputs and targets are standardised numbers (n, columns)."""

    forms: ClassVar[tuple[str, ...]] = ("numbers",)

    def of_errors(self, errors: "Tensor") -> "Tensor":  # noqa: ARG002  # for the losses
        """Return the loss of each number from its error (n, columns): the output minus the target."""
        raise missing_method(type(self), "of_errors(self, errors)")

    def summed(self, outputs: "Tensor", targets: "Tensor", weights: "Tensor | None") -> "Tensor":  # noqa: ARG002  # all numbers count alike
        return self.of_shape(self.of_errors(outputs - targets), outputs, "of_errors").sum()

    def of_guessing(self, num_outputs: int) -> float:  # noqa: ARG002  # the mean over the columns
        """Return the mean loss of targets one standard deviation above and below the mean, for a model that gives the mean."""
        import torch  # late: parameters are read without torch

        return float(self.of_errors(torch.tensor([[1.0], [-1.0]], dtype=torch.float64)).mean())
