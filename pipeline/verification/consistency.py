"""Compares the manifest of a model file with what the prepared data, the parameters and the machine imply."""

from itertools import pairwise
from typing import Any

from pipeline.data.prepared import Prepared
from pipeline.engine import precision
from pipeline.engine.model_file import Manifest
from pipeline.params.loop import LoopSettings
from pipeline.runtime.machine import Machine
from pipeline.verification.comparison import Comparison, Places


def of_manifest(manifest: Manifest, prepared: Prepared, machine: Machine) -> Comparison:
    """Compare spec and precision exactly; check that a complete training can end at this step, with these micro-batch switches."""
    settings = manifest.train_params.train
    num_steps = settings.num_steps(len(prepared.train))
    stated = manifest.model_dump(mode="json", include={"spec", "precision", "step", "switches"})
    implied: dict[str, Any] = {
        **stated,
        "spec": prepared.spec.model_dump(mode="json"),
        "precision": precision.choose(settings.precision, machine.device),
    }
    if not may_end_at(manifest.step, settings, num_steps):
        implied["step"] = possible_steps(settings, num_steps)
    if not are_halvings(manifest.switches, settings, num_steps):
        implied["switches"] = f"halvings of {settings.micro_batch_size}, at steps from 1 to {num_steps}"
    said = f"{manifest.precision}, step {manifest.step} of {num_steps}, {len(manifest.switches)} smaller micro-batches"
    places = Places("the file", "what its data and parameters imply")
    return Comparison.of_values("manifest", said, places, expected=stated, found=implied)


def may_end_at(step: int, settings: LoopSettings, num_steps: int) -> bool:
    """Return True if a complete training can export the weights after `step` updates.

    These are the weights of the last step, of the best validation (`export_weights: best`), or of the validation that stopped
    the training early, which needs more than `patience` validations.
    """
    if step == num_steps or not ends_at_validations(settings):
        return step == num_steps
    before = 0 if settings.export_weights == "best" else settings.patience or 0
    validations, rest = divmod(step, settings.validate_every_steps)
    return rest == 0 and before < validations and step < num_steps


def ends_at_validations(settings: LoopSettings) -> bool:
    """Return True if the exported weights can be those of a validation before the last step."""
    return settings.export_weights == "best" or settings.patience is not None


def possible_steps(settings: LoopSettings, num_steps: int) -> int | str:
    """Return the steps that `may_end_at` accepts, for a message."""
    return f"{num_steps} or the step of a validation" if ends_at_validations(settings) else num_steps


def are_halvings(switches: list[dict[str, int]], settings: LoopSettings, num_steps: int) -> bool:
    """Return True if OOM retries can produce these switches: steps increase, and each size is the previous one halved at least once."""
    steps = [0, *(switch["step"] for switch in switches), num_steps + 1]
    sizes = [settings.micro_batch_size, *(switch["micro_batch_size"] for switch in switches)]
    halved = all(after in {before >> times for times in range(1, before.bit_length())} for before, after in pairwise(sizes))
    return halved and all(before < after for before, after in pairwise(steps))
