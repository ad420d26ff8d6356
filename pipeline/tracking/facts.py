"""What is known of a run when it begins."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Facts:
    """`params` cannot change once MLflow has them; `tags` can. `dataset` is any JSON that describes the data."""

    params: Mapping[str, Scalar] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    dataset_name: str = ""
    dataset_digest: str = ""
    dataset: Mapping[str, Any] = field(default_factory=dict)
    description: str = ""
    name: str = ""

    def as_fields(self) -> dict[str, Any]:
        return asdict(self)
