"""One comparison of a verification, and those of a model file's manifest with the prepared data, the parameters and the machine."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.core import identity, untrusted
from pipeline.core.params import shown
from pipeline.core.prepared import Prepared
from pipeline.core.section import leaves
from pipeline.inference import networks, precision
from pipeline.inference.machine import Machine
from pipeline.inference.model_file import Manifest
from pipeline.inference.tensor_file import Tensors
from pipeline.train import memory_format
from pipeline.train.params import TrainParams

HEXADECIMAL = re.compile(r"[0-9a-f]{40,64}")
NOTHING, UNKNOWN, LONGEST = "nothing", "unknown: ", 200


@dataclass(frozen=True)
class Sides:
    """Names for the origins of the two compared values, for messages: `expected` is, for example, "the file", and `found` "this machine".

    A message ends with the text `found`, so this text may contain a remedy.
    """

    expected: str
    found: str

    def describe(self, expected: object, found: object) -> str:
        return f"{short(expected)} in {self.expected}, but {short(found)} in {self.found}"


@dataclass(frozen=True)
class ComparedPart:
    name: str
    description: str
    """Text about what was compared, printed with the result."""
    difference: str | None
    """The first difference with both values; None if the values are equal."""

    @classmethod
    def of_texts(cls, name: str, description: str, sides: Sides, *, expected: str, found: str) -> "ComparedPart":
        """Compare the strings `expected` and `found`, such as digests or commits."""
        return cls(name, f"{description} ({short(found)})", None if expected == found else sides.describe(expected, found))

    @classmethod
    def of_values(
        cls, name: str, description: str, sides: Sides, *, expected: Mapping[str, Any], found: Mapping[str, Any]
    ) -> "ComparedPart":
        """Compare nested mappings. The difference names the first differing key, such as `train.steps`, and both values."""
        different = identity.differences(dict(leaves(expected)), dict(leaves(found)), missing=NOTHING)
        texts = (f"{untrusted.shown(key, LONGEST)}: {sides.describe(*values)}" for key, values in different)
        return cls(name, description, next(texts, None))

    @classmethod
    def of_weights(cls, name: str, description: str, *, expected: Tensors, found: Tensors) -> "ComparedPart":
        """Compare the tensors of the model file (`expected`) with those of a new training (`found`) by name, dtype, shape and bits."""
        differences = (difference(key, expected.get(key), found.get(key)) for key in sorted({*expected, *found}))
        return cls(name, description, next(filter(None, differences), None))


def difference(name: str, expected: Tensor | None, found: Tensor | None) -> str | None:
    """Describe how two tensors called `name` differ; return None if their dtype, shape and bits are equal. None stands for a missing
    tensor.

    If only bits differ, the text has the number of elements that differ and the largest absolute difference.
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
    """Shorten a value for a message: a digest or commit to 12 digits, other text to its first line. Other values become JSON."""
    if not isinstance(value, str):
        return shown(value)
    line = (value.splitlines() or [""])[0]
    return line[:12] if HEXADECIMAL.fullmatch(line) else untrusted.shown(line, LONGEST)


def compare_manifest(manifest: Manifest, params: TrainParams, prepared: Prepared, machine: Machine) -> ComparedPart:
    """Compare the manifest, the metadata of the model file, with what the prepared data, the parameters and the machine imply.

    The spec, the precision and the memory format must be the implied ones. Only a new training tells whether step and micro-batches are.
    """
    settings, spec = params.train, prepared.spec
    stated = manifest.model_dump(mode="json", include={"spec", "precision", "channels_last"})
    chosen = precision.choose(settings.precision, machine.device)
    network = networks.build_on_meta(params.model, spec) or params.model.build(spec)
    implied = {
        "spec": spec.model_dump(mode="json"),
        "precision": chosen,
        "channels_last": memory_format.choose(settings, network, chosen, machine.device),
    }
    description = f"{manifest.precision}, step {manifest.step} of {settings.num_steps(len(prepared.train))}, {len(manifest.switches)} smaller micro-batches"
    sides = Sides("the file", "what its data and parameters imply")
    return ComparedPart.of_values("manifest", description, sides, expected=stated, found=implied)
