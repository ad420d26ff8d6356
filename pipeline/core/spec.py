"""Describes a dataset: the kind and the properties of its inputs and of its targets. Model and task are built from this."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationInfo, field_validator

from pipeline.core.refusal import Refusal
from pipeline.core.registry import INPUTS, TASKS
from pipeline.core.untrusted import shown

if TYPE_CHECKING:
    from torch import Tensor as Tensor  # noqa: PLC0414  # tasks name it, too

Fit = Callable[[NDArray[np.float64]], NDArray[np.float64]]
Direction = Literal["max", "min"]
MOST_BYTES = 34 * 2**20
"""Upper bound for a file or header that holds a spec: enough for class names, a tokenizer (at most 32 MiB) and the names of tensors."""
NAMES_BYTES = 3 * 2**19
"""Upper bound for the class names. It leaves room for a tokenizer and for the tensor names in the MOST_BYTES of a model file's header."""


class Description(BaseModel):
    """The base class of `Inputs` and `Targets`, which together make up the description of a dataset (`Spec`).

    `kind` names the folder of this part, in `pipeline/inputs/` or `pipeline/tasks/`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: str

    def enlarged_if_other(self, new: "Description | None") -> Self | None:  # noqa: ARG002  # for descriptions with classes or tokens
        """Return a copy of this description with one more class or token, if `new` describes data with other classes or tokens, or is None.

        Return None if they are the same, or, as the base class does, if there are neither classes nor tokens. The copy shows which tensors
        of a network belong to classes or tokens: those with another shape in a network for the copy. If a training on the new data starts
        from a model of this data (`model.weights`), these tensors are not copied.
        """
        return None


class Inputs(Description):
    """Describes the inputs of a dataset. Each kind of inputs has its own subclass: `Inputs` in `pipeline/inputs/KIND/description.py`.

    In the same folder, `first_layer.py` has a class `Preprocessing` (the first layer of every model), and `predict.py`, which a kind may lack,
    a class `Reader` (from files and values to stored samples). `pipeline/prepare/inputs/KIND.py` has a class `Statistics`: what `prepare`
    computes over the train split.
    """

    dtype: ClassVar[type[np.generic]]
    """NumPy dtype of the stored inputs."""

    # A description without a column has the bytes that it had before this field existed.
    column: str | int | None = Field(default=None, exclude_if=lambda column: column is None)
    """The column of a table from which the samples were read, which `predict` reads from other tables. None if they were in no table, or if
    an earlier version wrote the description."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Return the shape of a stored sample: one sample in the form in which `prepare` stores it."""
        raise NotImplementedError

    @property
    def num_features(self) -> int | None:
        """Return how many numbers the model's preprocessing makes of a sample, or None if a model of flat features cannot read them, as tokens."""
        return None

    augmented: ClassVar[Literal["pixels", "tokens"] | None] = None
    """This says what an augmentation changes of a sample; None if these inputs are not augmented."""

    @property
    def columns_read(self) -> tuple[tuple[str | int, str], ...]:
        """Return the name and the kind of each number of a stored sample, if it is the row of a table; else ()."""
        return ()

    @property
    def num_tokens(self) -> int:
        """Return the number of different tokens, if samples are tokens."""
        raise NotImplementedError

    @property
    def pad(self) -> int:
        """Return the number that fills the end of a stored sample, if samples of this kind are padded."""
        return 0

    def reads_samples_of(self, other: "Inputs") -> bool:
        """Return True if a model for these inputs can read the stored samples that `other` describes. Their statistics may differ."""
        return (self.kind, self.row_shape) == (other.kind, other.row_shape)

    def lengths(self, rows: NDArray[Any]) -> NDArray[np.int64] | None:  # noqa: ARG002  # for inputs that are padded
        """Return the length of each stored sample in `rows` without its padding, as an array (n,).

        Return None, as the base class does, if samples of this kind are never padded.
        """
        return None

    def target_tokens(self, rows: Any) -> Any:
        """Return the tokens of stored samples, an array or a tensor (n, ...), among which are their targets, (n, length): see `Targets.stored`."""
        raise NotImplementedError

    def num_targets(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        """Return the number of targets of each stored sample, (n,), if they are among its tokens."""
        raise NotImplementedError

    def random_samples(self, count: int) -> NDArray[Any]:
        """Return `count` random stored samples, which are the same in each call.

        They contain whole numbers from 0 to 255. If `dtype` is a floating-point type, they contain normally distributed numbers instead.
        """
        generator, shape = np.random.default_rng(0), (count, *self.row_shape)
        if np.issubdtype(self.dtype, np.floating):
            return generator.standard_normal(shape).astype(self.dtype)
        return generator.integers(0, 256, shape).astype(self.dtype)

    @classmethod
    def example(cls) -> Self | None:
        """Return a description of typical data, for which `check` builds the network before the real data is prepared.

        Names of parameters and refused combinations of settings must not depend on it. If it returns None, as in the base class, `check`
        builds no network, and such a mistake is found when the training begins.
        """
        return None

    @classmethod
    def of(cls, spec: "Spec") -> Self:
        """Return the inputs of `spec`. Raises Refusal if they are not an instance of this class."""
        if not isinstance(spec.inputs, cls):
            raise other_inputs(spec.inputs)
        return spec.inputs


class Targets(Description):
    """Describes the targets of a dataset, which decide the task. Each kind has its own subclass.

    This subclass is `Targets` in `pipeline/tasks/KIND/targets.py`. In the same folder, `train.py` has a class `Objective` (loss and metrics of
    the training), `evaluate.py` the classes `Settings` (the section `evaluate`) and `Evaluator` (scores, tables and figures of the test
    split), and `predict.py`, which a task may lack, a class `Predictor`.
    """

    dtype: ClassVar[type[np.generic]]
    """NumPy dtype of the stored targets."""
    form: ClassVar[Literal["class", "labels", "numbers", "tokens"] | None] = None
    """This says what the targets of a sample are: the number of a class; 1 for each label that it has, and 0 for each other one (outputs,); numbers
    (outputs,); or numbers of tokens. Losses and metrics say which of them they compare (`forms`). None for another form."""
    loss_keys: ClassVar[frozenset[str]] = frozenset()
    """Those of the keys `class_weights` and `label_smoothing` of a loss that have a meaning for such targets."""
    mixable: ClassVar[bool] = False
    """True if mixup and CutMix can mix the targets of two samples: by shares of classes or labels."""
    stored: ClassVar[Literal["apart", "windows", "within"]] = "apart"
    """This says where the targets are: stored beside the inputs, or the tokens that follow each token of the inputs. If they are in `windows`, the rows
    of a split are consecutive pieces of one sequence, and a model returns outputs (n, length, num_outputs). `within` the inputs, they are
    among the `target_tokens` of a sample, such as those of the target text in a pair: a model returns outputs (n, length - 1, num_outputs),
    and those at a target token predict the one that follows."""
    loss_unit: ClassVar[str] = "nats"
    """The unit of the loss of a validation, for figures."""
    metrics: ClassVar[Mapping[str, Direction]]
    """Maps each metric of a validation to "max" or "min": the better direction. `train.metric` is one of them with the prefix `valid/`."""
    only_validated: ClassVar[frozenset[str]] = frozenset()
    """Those of `metrics` that are not measured over the steps of the training."""
    averaged: ClassVar[bool] = False
    """True if the predictions of several models can be one: by the mean of the probabilities of classes or tokens."""
    predictions: ClassVar[str] = "numbers"
    """This says in words what `predict` gives."""
    hub_task: ClassVar[str] = "{inputs}-classification"
    """The name of the task on the Hugging Face Hub. `{inputs}` stands for the inputs, such as `image`."""
    prediction_unit: ClassVar[str | None] = None
    """The unit of predictions, such as "probability"; None if these are the outputs of the network, such as logits."""

    @classmethod
    def example(cls) -> Self | None:
        """Return a description of typical targets, or None: see `Inputs.example`."""
        return None

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Return the shape of the stored target of one sample. Targets that are tokens of the inputs are not stored apart from them."""
        return () if self.stored == "apart" else (0,)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Return the name of each output; an empty tuple if the outputs have no names."""
        return ()

    @classmethod
    def named(cls, names: tuple[str, ...], place: str) -> Self:  # noqa: ARG003  # for outputs with names
        """Return the description of targets whose outputs are called `names`: classes, labels or columns.

        Raises Refusal if there are too few. `place` names the dataset in the message. In this base class, outputs have no names.
        """
        return cls()  # type: ignore[call-arg]  # the kind of a task has a default

    @property
    def positive_number(self) -> int | None:
        """Return the number of the positive one of two classes; None for targets that are no classes."""
        return None

    @property
    def recommended(self) -> dict[str, Any]:
        """Return values of parameters that a first training of this task should have, by dotted keys, or by sections as in `set`."""
        return {}

    @property
    def constants(self) -> Mapping[str, Sequence[float]]:
        """Return the numbers that `as_predictions` needs, by name. `scale` are those by which differences of predictions are divided for messages."""
        return {}

    def as_predictions(self, outputs: "Tensor", constants: Mapping[str, "Tensor"]) -> "Tensor":
        """Return the predictions for `outputs` (n, ...) of the network, if `prediction_unit` is not None. It is the last layer of a model that predicts.

        `constants` are those of the property, in float64, on the device of `outputs`.
        """
        raise NotImplementedError

    def has_targets_of(self, other: Description | None) -> bool:
        """Return True if stored targets that `other` describes mean the same as those of this description: outputs of the same names."""
        if not self.output_names:
            return self == other
        return isinstance(other, type(self)) and self.output_names == other.output_names

    def enlarged_if_other(self, new: Description | None) -> Self | None:
        # no class, label or column has this name
        return None if not self.output_names or self.has_targets_of(new) else self.named((*self.output_names, "\0"), "")

    def num_outputs(self, inputs: Inputs) -> int:
        """Return how many outputs a model must have for each target. In this base class, these are the outputs with names, such as classes, or the tokens.

        `inputs` describes the inputs of the same dataset. A language model needs it: it has one output for each token of the tokenizer.
        """
        if self.form == "tokens":
            return inputs.num_tokens
        assert self.output_names, f"{type(self).__name__} has no names of outputs, and so needs a num_outputs of its own"
        return len(self.output_names)

    def fitted(self, targets: NDArray[Any]) -> Self:  # noqa: ARG002  # for targets with statistics
        """Return this description with what `prepare` computes from `targets`, those of the train split. The base class computes nothing."""
        return self

    def refuse_invalid(self, targets: NDArray[Any], place: str) -> None:
        """Raise Refusal if targets are outside their valid range. `place` names the file, or the split of the source, in the message.

        The base class checks nothing.
        """

    def refuse_unlearnable(self, targets: NDArray[Any], place: str) -> None:
        """Raise Refusal if a model can learn nothing from `targets`, the targets of the train split.

        `place` is the dataset to name in the message. The base class checks nothing.
        """

    def baseline_scores(self, train: NDArray[Any], test: NDArray[Any]) -> dict[str, float]:  # noqa: ARG002  # for targets with a simple guess
        """Return the scores of a guess that ignores the inputs, by name. `train` and `test` are the targets of these splits.

        The base class returns none.
        """
        return {}

    def linear_scores(
        self,
        fit: Fit,  # noqa: ARG002  # for targets that a linear model can fit
        train: NDArray[Any],  # noqa: ARG002
        test: NDArray[Any],  # noqa: ARG002
    ) -> dict[str, float]:
        """Return the scores of a linear model of the inputs, by name. `train` and `test` are the targets of these splits.

        `fit` fits numbers (train samples, n), and returns the fitted numbers of the test samples. The base class returns no scores.
        """
        return {}

    def with_positive(self, name: str | int | None) -> Self:
        """Return this description with `name`, that of `source.positive_class`, as the positive one of two classes; None changes nothing.

        Raises Refusal, as the base class does, if there are not two classes.
        """
        if name is not None:
            raise Refusal("source.positive_class: is for two classes, which this task does not have: write null")
        return self

    def strata(self, targets: NDArray[Any]) -> NDArray[np.int64]:
        """Return the stratum of each sample as a number, in an array (n,). A stratum is a group of samples, such as a class.

        If a split is drawn at random from train, it gets the same share of the samples of each stratum.
        In the base class, all samples are in stratum 0.
        """
        return np.zeros(len(targets), np.int64)

    def sizes(self, targets: NDArray[Any]) -> dict[str, int]:  # noqa: ARG002  # for classes
        """Return the number of samples of each class or label, by its name for messages. In the base class, there are none."""
        return {}

    def stratum_name(self, number: int) -> str:  # noqa: ARG002  # there is one stratum only
        """Return the name of the stratum `number`, for use in messages."""
        return "the dataset"


class Spec(BaseModel):
    """Describes a dataset: its inputs and its targets."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    inputs: SerializeAsAny[Inputs]
    targets: SerializeAsAny[Targets]

    @field_validator("inputs", "targets", mode="before")
    @classmethod
    def find_kind(cls, value: Any, info: ValidationInfo) -> Any:
        """If `value` is a mapping, validate it with the class in the module of its `kind`. Any other value is returned unchanged."""
        if not isinstance(value, Mapping):
            return value
        registry, name = (INPUTS, "Inputs") if info.field_name == "inputs" else (TASKS, "Targets")
        if (kind := value.get("kind")) not in registry.names:
            raise ValueError(f"there is no {registry.noun} {kind!r}: choose one of {', '.join(registry.names)}")
        return getattr(registry.module(str(kind)), name).model_validate(value)

    @property
    def num_outputs(self) -> int:
        """Return how many outputs a model must have for each target. For a classification, this is the number of classes."""
        return self.targets.num_outputs(self.inputs)

    @property
    def num_features(self) -> int:
        """Return how many numbers a model of flat features gets for each sample. Raises Refusal if the inputs, such as tokens, are no such numbers."""
        if self.inputs.num_features is None:
            raise other_inputs(self.inputs)
        return self.inputs.num_features


def other_inputs(inputs: Inputs) -> Refusal:
    """Return the Refusal of a model that does not accept such inputs."""
    such = ", such as mlp," if inputs.num_features else ","
    return Refusal(f"model.name: this model does not accept inputs of the kind {inputs.kind}: choose another model{such} or another source")


def stored_bytes(value: Any, *, part: str, key: str) -> int:
    """Return the bytes that `value`, the `key` of the `part` of a spec, takes in `spec.json` or in a model file: the larger number."""
    in_record = json.dumps({"spec": {part: {key: value}}}, indent=2, ensure_ascii=False)
    in_header = json.dumps(json.dumps(value, ensure_ascii=False), ensure_ascii=False)
    return max(len(in_record.encode()), len(in_header.encode()))


def distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of classes or labels. Raises ValueError if two are equal."""
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two of them are named {shown(repeated, 60)}: rename one")
    return names


def refuse_long(names: tuple[str, ...], key: str, place: str) -> None:
    """Raise Refusal if the names of the classes or labels, the `key` of the targets, are too long in total for `spec.json` and the header of the
    model file. `place` names the dataset in the message.
    """
    size_bytes = stored_bytes(names, part="targets", key=key)
    if size_bytes > NAMES_BYTES:
        raise Refusal(
            f"source.root: {place} has {len(names)} {key} whose names have {size_bytes} bytes in total, more than {NAMES_BYTES}: shorten the names"
        )
