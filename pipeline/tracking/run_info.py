"""The metadata that a stage records when its run begins."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.flatten import Scalar

SECTIONS = ("seed", "model", "optimizer", "train", "schedule", "augment", "evaluate", "source")
"""The order of parameters in the names of runs and in their comparison: those that people vary most come first."""


@dataclass(frozen=True)
class Dataset:
    """One split of the data, for MLflow. `context` says what the split is used for, in MLflow's terms, such as "training". `profile` has
    facts about the split.
    """

    name: str
    digest: str
    context: str
    profile: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunInfo:
    """The metadata of a run.

    In MLflow, tags can change later, but params cannot. `provenance` is stored as a JSON file. `name` and `description` are used only if
    the run is new in MLflow.
    """

    params: Mapping[str, Scalar] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    datasets: Sequence[Dataset] = ()
    subject: str = ""
    """Model and dataset, as "ARCHITECTURE on DATASET", for the descriptions of the run."""
    description: str = ""
    name: str = ""


def architecture(params: Mapping[str, Any]) -> str:
    """Return the name of the architecture, such as "lstm", from the parameters of a run by dotted key; "" if there is none.

    It is `ModelSettings.title`, but needs neither valid parameters nor torch.
    """
    return str(next((value for key in ("architecture", "cell", "name") if (value := params.get(f"model.{key}"))), ""))
