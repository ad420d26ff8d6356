"""One comparison of a verification, and those of a model file's manifest with the prepared data, the parameters and the machine."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
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
from pipeline.train.params import LoopSettings, TrainParams

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

    The spec, the precision and the memory format must be the implied ones. `step` must be a step after which a complete training can export its weights.
    `switches`, the changes of the micro-batch size, must be possible results of out-of-memory retries.
    """
    settings, spec = params.train, prepared.spec
    num_steps = settings.num_steps(len(prepared.train))
    earlier = steps_of_early_exports(settings, num_steps)
    stated = manifest.model_dump(mode="json", include={"spec", "precision", "channels_last", "step", "switches"})
    chosen = precision.choose(settings.precision, machine.device)
    network = networks.build_on_meta(params.model, spec) or params.model.build(spec)
    implied = stated | {
        "spec": spec.model_dump(mode="json"),
        "precision": chosen,
        "channels_last": memory_format.choose(settings, network, chosen, machine.device),
    }
    if manifest.step != num_steps and manifest.step not in earlier:
        implied["step"] = f"{num_steps} or the step of a validation that can end the training" if earlier else num_steps
    if not are_halvings(manifest.switches, settings, num_steps):
        implied["switches"] = f"halvings of {settings.micro_batch_size}, at steps from 1 to {num_steps}"
    description = f"{manifest.precision}, step {manifest.step} of {num_steps}, {len(manifest.switches)} smaller micro-batches"
    sides = Sides("the file", "what its data and parameters imply")
    return ComparedPart.of_values("manifest", description, sides, expected=stated, found=implied)


def steps_of_early_exports(settings: LoopSettings, num_steps: int) -> range:
    """Return the steps before the last one, `num_steps`, whose weights a complete training may export.

    If `train.export_weights` is `best`, these are all steps with a validation. Otherwise, these are the steps at which `train.patience` can
    end the training early; there are none without `train.patience`.
    """
    every = settings.validate_every_steps
    if settings.export_weights == "best":
        return range(every, num_steps, every)
    return range(0) if settings.patience is None else range((settings.patience + 1) * every, num_steps, every)


def are_halvings(micro_batch_changes: list[dict[str, int]], settings: LoopSettings, num_steps: int) -> bool:
    """Return True if `micro_batch_changes`, which a manifest has as `switches`, can be the result of out-of-memory retries.

    Their steps must increase, from 1 to `num_steps` at most. Each size must be the size before, halved once or several times.
    """
    steps = [0, *(change["step"] for change in micro_batch_changes), num_steps + 1]
    sizes = [settings.micro_batch_size, *(change["micro_batch_size"] for change in micro_batch_changes)]
    halved = all(after in {before >> times for times in range(1, before.bit_length())} for before, after in pairwise(sizes))
    return halved and all(before < after for before, after in pairwise(steps))
