"""The section on the model: architecture, size, inputs and outputs, and all parameters of its training, beside those of the nearest preset."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torch import nn

from pipeline.core import untrusted
from pipeline.core.inputs.image import ImageInputs
from pipeline.core.inputs.text import TextInputs
from pipeline.core.refusal import Refusal
from pipeline.core.section import Scalar, flatten, formatted
from pipeline.core.spec import Spec
from pipeline.core.yaml_document import Document
from pipeline.tools.report.content import Cell, Details, Number, Pairs, Section, Table
from pipeline.tools.report.evidence import Evidence

PRESETS = Path("presets")
MOST_CHANGED = 12
"""A preset that differs from the training in more values is not named."""
MOST_LAYERS = 60
LONGEST = 160
TASKS = {"classification": "classification", "language_modeling": "language modeling"}
NOT_SET = "not set"


class Preset(NamedTuple):
    name: str
    params: Mapping[str, Scalar]
    changed: tuple[str, ...]
    """The keys whose values differ from the training of the model."""


def section(evidence: Evidence) -> Section:
    manifest, preset = evidence.manifest, nearest_preset(evidence.params, evidence.paths.top / PRESETS)
    settings = manifest.inference.model
    facts: list[tuple[str, Cell]] = [
        ("architecture", f"{settings.title} ({type(evidence.model.network).__name__})"),
        ("task", task_name(manifest.spec)),
        ("input", describe_inputs(manifest.spec)),
        ("outputs", Number(manifest.spec.num_outputs)),
        ("parameters", Number(sum(parameter.numel() for parameter in evidence.model.network.parameters()))),
        ("model file", f"{evidence.path.stat().st_size / 1e6:.2f} MB, safetensors, trained in {manifest.precision}"),
        ("weights of step", Number(manifest.step)),
        ("SHA-256", evidence.digest),
    ]
    if settings.weights is not None:
        facts.append(("started from", f"{settings.weights} (SHA-256 {manifest.inputs.get('weights', 'unknown')})"))
    if preset:
        others = f", with other values of {', '.join(preset.changed)}" if preset.changed else ""
        facts.append(("preset", f"{preset.name}{others}"))
    return Section("Model", (Pairs(tuple(facts)), parameters(evidence.params, preset), layers(evidence.model.network)))


def task_name(spec: Spec) -> str:
    """Return the task in words, such as `image classification`."""
    kind = TASKS.get(spec.targets.kind, spec.targets.kind)
    return kind if spec.targets.per_token else f"{spec.inputs.kind} {kind}"


def describe_inputs(spec: Spec) -> str:
    inputs = spec.inputs
    if isinstance(inputs, ImageInputs):
        return f"images of {inputs.height} x {inputs.width} pixels, {inputs.channels} channel{'' if inputs.channels == 1 else 's'}"
    if isinstance(inputs, TextInputs):
        return f"texts of up to {inputs.length} tokens; {inputs.tokenizer.kind} tokenizer with {inputs.num_tokens:,} tokens"
    return f"{inputs.kind}, shape {inputs.row_shape}"


def nearest_preset(params: Mapping[str, Scalar], folder: Path) -> Preset | None:
    """Return the preset that differs from `params` in the fewest values.

    Return None if this preset differs in more than MOST_CHANGED values, or in `model.name`. Only sections that `params` has are compared.
    """
    sections = {name.partition(".")[0] for name in params}
    found = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            document = flatten({name: value for name, value in Document.read(path).data.items() if name in sections})
        except Refusal:  # the user's own file
            continue
        changed = tuple(name for name in {**document, **params} if document.get(name, NOT_SET) != params.get(name, NOT_SET))
        found.append(Preset(path.stem, document, changed))
    nearest = min(found, key=lambda preset: len(preset.changed), default=None)
    if nearest is None or len(nearest.changed) > MOST_CHANGED or nearest.params.get("model.name") != params.get("model.name"):
        return None
    return nearest


def parameters(params: Mapping[str, Scalar], preset: Preset | None) -> Details:
    """Return a table of all parameters. Beside a value that differs from the preset's, the table has the preset's value."""
    rows = tuple((name, shown(value), changed(name, preset)) for name, value in params.items())
    if not preset or not preset.changed:
        return Details("All parameters", (Table(("parameter", "value"), tuple(row[:2] for row in rows)),))
    return Details("All parameters", (Table(("parameter", "value", f"preset {preset.name}"), rows),))


def changed(name: str, preset: Preset | None) -> str:
    return shown(preset.params.get(name, NOT_SET)) if preset and name in preset.changed else ""


def shown(value: Scalar) -> str:
    return untrusted.shown(formatted(value), LONGEST)


def layers(network: nn.Module) -> Details:
    """Return a table of the layers that have parameters of their own, or of the top-level modules if there are more than MOST_LAYERS."""
    leaves = [(name, part) for name, part in network.named_modules() if name and any(True for _ in part.parameters(recurse=False))]
    listed = leaves if len(leaves) <= MOST_LAYERS else list(network.named_children())
    rows = tuple(
        (
            name,
            untrusted.shown(repr(part).splitlines()[0].removesuffix("("), LONGEST),
            Number(sum(each.numel() for each in part.parameters())),
        )
        for name, part in listed[:MOST_LAYERS]
    )
    return Details("Layers", (Table(("name", "layer", "parameters"), rows),))
