"""Describes a dataset: the kind and properties of its inputs, and those of its targets. Model and task are built from this."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, SerializeAsAny, ValidationInfo, field_validator

from pipeline.refusal import Refusal
from pipeline.registry import INPUTS, TASKS, Registry

Direction = Literal["max", "min"]
MOST_BYTES = 2 * 2**20
"""Upper bound for a file or header that holds a spec: enough for some hundred thousand class names."""


class Description(BaseModel):
    """One part of a Spec, inputs or targets. `kind` names the folder in `pipeline/inputs/` or `pipeline/tasks/` that has its modules."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: str

    def enlarged(self) -> Self | None:
        """Return this description with one more class or token, which shows the tensors of a network that belong to single ones.

        If a training starts from the weights of a model for another description, these tensors start untrained. None, unless overridden,
        means that there are none.
        """
        return None


class Inputs(Description):
    """Describes the inputs. The class `Inputs` in `pipeline/inputs/KIND/description.py` is the subclass for one kind.

    The folder also has `statistics.py` with a class `Statistics` (what `prepare` computes over the train split), and
    `preprocessing.py` with a class `Preprocessing` (the first layer of every model).
    """

    dtype: ClassVar[type[np.generic]]
    """Type of the stored inputs."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Return the shape of one stored sample."""
        raise NotImplementedError

    @classmethod
    def of(cls, spec: "Spec") -> Self:
        """Return the inputs of `spec`. Raises Refusal if they are not of this class."""
        if not isinstance(spec.inputs, cls):
            raise Refusal(
                f"model.name: this model does not accept inputs of the kind {spec.inputs.kind}: choose another model, or another source"
            )
        return spec.inputs


class Targets(Description):
    """Describes the targets, which decide the task. The class `Targets` in `pipeline/tasks/KIND/targets.py` is the subclass for one
    kind.

    The folder also has `objective.py` with a class `Objective` (loss and metrics of the training), and `evaluation.py` with a class
    `Evaluator` (scores, tables and figures of the test split).
    """

    dtype: ClassVar[type[np.generic]]
    """Type of the stored targets."""
    row_shape: ClassVar[tuple[int, ...]] = ()
    """Shape of the stored target of one sample."""
    has_classes: ClassVar[bool] = False
    """True if a target is one of several classes. If False, label smoothing, mixup and CutMix are refused."""
    metrics: ClassVar[Mapping[str, Direction]]
    """Maps each metric of a validation to the direction in which it improves. `train.metric` is one of them with the prefix `valid/`."""

    @property
    def output_names(self) -> tuple[str, ...]:
        """Return the name of each output; an empty tuple if the outputs have no names."""
        return ()

    def num_outputs(self, inputs: Inputs) -> int:
        """Return the number of outputs per target that a model must have."""
        raise NotImplementedError

    def refuse_invalid(self, targets: NDArray[Any], place: str) -> None:
        """Raise Refusal if stored targets are outside their valid range. `place` names the file in the message.

        Checks nothing unless overridden.
        """

    def refuse_unlearnable(self, targets: NDArray[Any], place: str) -> None:
        """Raise Refusal if nothing can be learned from `targets`, the targets of the train split. `place` names the dataset in the message.

        Checks nothing unless overridden.
        """

    def strata(self, targets: NDArray[Any]) -> NDArray[np.int64]:
        """Return the stratum number of each sample, (n,). A split takes its share from each stratum. All samples are in stratum 0 unless overridden."""
        return np.zeros(len(targets), np.int64)

    def stratum_name(self, number: int) -> str:  # noqa: ARG002  # there is one stratum only
        """Return the name of a stratum for messages."""
        return "the dataset"


class Spec(BaseModel):
    """Describes a dataset: its inputs and its targets."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    inputs: SerializeAsAny[Inputs]
    targets: SerializeAsAny[Targets]

    @field_validator("inputs", "targets", mode="before")
    @classmethod
    def find_kind(cls, value: Any, info: ValidationInfo) -> Any:
        """Validate a mapping with the class that its `kind` selects. Any other value is returned unchanged."""
        registry, part, name = (INPUTS, "description", "Inputs") if info.field_name == "inputs" else (TASKS, "targets", "Targets")
        return read_kind(value, registry, part, name) if isinstance(value, Mapping) else value

    @property
    def num_outputs(self) -> int:
        """Return the number of outputs per target that a model must have."""
        return self.targets.num_outputs(self.inputs)


def read_kind(value: Mapping[str, Any], registry: Registry, part: str, name: str) -> Any:
    """Validate a mapping with the class `name` in the module `part` of the folder that the mapping's `kind` names.

    Raises ValueError if there is no such folder, or if the mapping is invalid.
    """
    kind = value.get("kind")
    if kind not in registry.names:
        raise ValueError(f"there is no {registry.noun} {kind!r}: choose one of {', '.join(registry.names)}")
    return getattr(registry.module(str(kind), part), name).model_validate(value)
