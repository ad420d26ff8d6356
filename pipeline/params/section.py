"""The base of every section of `params.yaml`."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(gt=0, le=1_000_000)]
"""A count of things that take memory; the bound turns a typing error into a clear message instead of OOM."""
Steps = Annotated[int, Field(gt=0, le=1_000_000_000_000)]
"""A number of steps; the bound keeps the number exact when it is converted to a float."""
Share = Annotated[float, Field(ge=0, lt=1)]
"""A fraction from 0 inclusive to 1 exclusive."""
Width = Annotated[int, Field(gt=0, le=65_536)]
"""The width of a layer."""
Depth = Annotated[int, Field(gt=0, le=1000)]
"""A number of layers; bounded because each takes time to build, even on the meta device."""
Patterns = tuple[Annotated[str, Field(min_length=1, max_length=500)], ...]
"""Patterns of names, in the form of `fnmatch`."""


SECTIONS = ("seed", "source", "model", "optimizer", "schedule", "augment", "train", "evaluate")
"""The top-level keys of `params.yaml`. They are listed here, and not collected from the sections' classes, so that a stage imports only the
modules of the sections that it reads."""


class Section(BaseModel):
    """A frozen pydantic model. It rejects unknown keys, and values of a wrong type instead of converting them.

    The docstring under a field is its description in docs/parameters.md and in the JSON schema.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True, protected_namespaces=()
    )
