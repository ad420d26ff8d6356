"""One comparison of a verification: what was compared, and the first difference."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.flatten import leaves
from pipeline.io import untrusted
from pipeline.io.tensor_file import Tensors
from pipeline.params.load import shown

HEXADECIMAL = re.compile(r"[0-9a-f]{40,64}")
NOTHING, UNKNOWN = "nothing", "unknown: "
LONGEST = 200


@dataclass(frozen=True)
class Sides:
    """Names the origins of the expected and the found value in a message, such as "the file" and "this machine".

    `found` is last in that message, so it may end with a remedy.
    """

    expected: str
    found: str

    def describe(self, expected: object, found: object) -> str:
        return f"{short(expected)} in {self.expected}, but {short(found)} in {self.found}"


@dataclass(frozen=True)
class Comparison:
    name: str
    description: str
    """Describes the compared values in the output line."""
    difference: str | None
    """The first difference, with both values; None if the values are equal."""

    @classmethod
    def of_texts(cls, name: str, description: str, sides: Sides, *, expected: str, found: str) -> "Comparison":
        """Compare the strings `expected` and `found`, such as digests or commits."""
        return cls(name, f"{description} ({short(found)})", None if expected == found else sides.describe(expected, found))

    @classmethod
    def of_values(cls, name: str, description: str, sides: Sides, *, expected: Mapping[str, Any], found: Mapping[str, Any]) -> "Comparison":
        """Compare the nested mappings `expected` and `found`. `difference` has the dotted key of the first differing value, and both values."""
        left, right = dict(leaves(expected)), dict(leaves(found))
        pairs = ((key, left.get(key, NOTHING), right.get(key, NOTHING)) for key in {**left, **right})
        differences = (f"{untrusted.shown(key, LONGEST)}: {sides.describe(one, other)}" for key, one, other in pairs if one != other)
        return cls(name, description, next(differences, None))

    @classmethod
    def of_weights(cls, name: str, description: str, *, expected: Tensors, found: Tensors) -> "Comparison":
        """Compare names, dtypes, shapes and bits of the tensors in the file (`expected`) with those of a new training (`found`)."""
        differences = (difference(key, expected.get(key), found.get(key)) for key in sorted({*expected, *found}))
        return cls(name, description, next(filter(None, differences), None))


def difference(name: str, expected: Tensor | None, found: Tensor | None) -> str | None:
    """Return a text about the difference of two tensors called `name`; None if dtype, shape and bits are equal.

    An absent tensor is None. If dtype and shape are equal, the text has the number of elements whose bits differ, and the largest absolute
    difference.
    """
    if expected is None or found is None or (expected.dtype, expected.shape) != (found.dtype, found.shape):
        return f"{name}: {form(expected)} in the file, {form(found)} in the new training"
    # Compare bytes, not values: NaN equals NaN, and 0.0 differs from -0.0.
    bits, others = (tensor.contiguous().flatten().view(torch.uint8).view(*tensor.shape, -1) for tensor in (expected, found.cpu()))
    different = (bits != others).any(dim=-1)
    if not different.any():
        return None
    largest = (expected.double() - found.cpu().double())[different].abs().max()
    return f"{name}: {int(different.sum())} of {expected.numel()} elements differ, by {float(largest):.3g} at most"


def form(tensor: Tensor | None) -> str:
    """Return the dtype and shape of a tensor as text, or `NOTHING` for None."""
    return NOTHING if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def short(value: object) -> str:
    """Format a value for a message: a digest or commit by its first 12 digits, other text by its first line, other values as JSON."""
    if not isinstance(value, str):
        return shown(value)
    line = (value.splitlines() or [""])[0]
    return line[:12] if HEXADECIMAL.fullmatch(line) else untrusted.shown(line, LONGEST)
