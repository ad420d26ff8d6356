"""The base of every section of `params.yaml`."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Frozen, closed, strict: a misspelt key or a word where a number belongs is an error, never a guess.

    The text under a field is its description in the README's table and in the JSON schema.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True, protected_namespaces=()
    )
