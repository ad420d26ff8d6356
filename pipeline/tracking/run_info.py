"""The metadata of a run at the start of a stage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.flatten import Scalar


@dataclass(frozen=True)
class Dataset:
    """One split of the data. `context` is MLflow's term for its use, `profile` is a description in JSON."""

    name: str
    digest: str
    context: str
    profile: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunInfo:
    """The metadata of a run.

    MLflow can change `tags` later, but not `params`. `provenance` becomes an artifact.
    `name` and `description` are used for a new run only.
    """

    params: Mapping[str, Scalar] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    datasets: Sequence[Dataset] = ()
    subject: str = ""
    """Model and dataset, for the descriptions of the run."""
    description: str = ""
    name: str = ""
