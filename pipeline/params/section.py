"""The base of every section of `params.yaml`."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(gt=0, le=1_000_000)]
"""Of what takes memory: a slip of the finger is refused here and not by the allocator."""
Steps = Annotated[int, Field(gt=0, le=1_000_000_000_000)]
"""Exact also where they are computed with as floating-point numbers."""
Share = Annotated[float, Field(ge=0, lt=1)]
"""Of a whole, which is never all of it."""
Width = Annotated[int, Field(gt=0, le=65_536)]
"""Of a layer."""
Depth = Annotated[int, Field(gt=0, le=1000)]
"""Layers of a network, each of which takes time to build, also where nothing is allocated."""


class Section(BaseModel):
    """Frozen, closed, strict: a misspelt key or a word where a number belongs is an error, never a guess.

    The text under a field is its description in docs/parameters.md and in the JSON schema.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True, protected_namespaces=()
    )
