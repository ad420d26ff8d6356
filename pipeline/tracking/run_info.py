"""What is known of a run when a stage begins to report to it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline.flatten import Scalar


@dataclass(frozen=True)
class Dataset:
    """One split of the data: `context` is MLflow's word for its use, `profile` any JSON that describes it."""

    name: str
    digest: str
    context: str
    profile: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunInfo:
    """`params` cannot change once MLflow has them; `tags` can. `provenance` becomes an artifact; `name` and `description` are for a new run."""

    params: Mapping[str, Scalar] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    datasets: Sequence[Dataset] = ()
    subject: str = ""
    """Model and data, for the descriptions of the run."""
    description: str = ""
    name: str = ""

    def as_fields(self) -> dict[str, Any]:
        return asdict(self)
