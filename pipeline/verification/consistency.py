"""Compares the manifest of a model file (its metadata) with what the prepared data, the parameters and the machine imply."""

from itertools import pairwise

from pipeline.data.prepared import Prepared
from pipeline.engine import precision
from pipeline.engine.model_file import Manifest
from pipeline.params.loop import LoopSettings
from pipeline.runtime.machine import Machine
from pipeline.verification.comparison import Comparison, Sides


def compare_manifest(manifest: Manifest, settings: LoopSettings, prepared: Prepared, machine: Machine) -> Comparison:
    """Compare the manifest, the metadata of the model file, with what the prepared data, the settings and the machine imply.

    The spec and the precision must be the implied ones. `step` must be a step after which a complete training can export its weights.
    `switches`, the changes of the micro-batch size, must be possible results of out-of-memory retries.
    """
    num_steps = settings.num_steps(len(prepared.train))
    earlier = steps_of_early_exports(settings, num_steps)
    stated = manifest.model_dump(mode="json", include={"spec", "precision", "step", "switches"})
    implied = stated | {"spec": prepared.spec.model_dump(mode="json"), "precision": precision.choose(settings.precision, machine.device)}
    if manifest.step != num_steps and manifest.step not in earlier:
        implied["step"] = f"{num_steps} or the step of a validation that can end the training" if earlier else num_steps
    if not are_halvings(manifest.switches, settings, num_steps):
        implied["switches"] = f"halvings of {settings.micro_batch_size}, at steps from 1 to {num_steps}"
    description = f"{manifest.precision}, step {manifest.step} of {num_steps}, {len(manifest.switches)} smaller micro-batches"
    sides = Sides("the file", "what its data and parameters imply")
    return Comparison.of_values("manifest", description, sides, expected=stated, found=implied)


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
