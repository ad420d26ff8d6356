"""The sections on what the model is: its architecture and parameters, its provenance, and the commands that reproduce it."""

import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from torch import nn

from pipeline.core import identity, untrusted
from pipeline.core.inputs.image import ImageInputs
from pipeline.core.inputs.text import TextInputs
from pipeline.core.inputs.text_pair import TextPairInputs
from pipeline.core.refusal import Refusal, counted
from pipeline.core.section import Scalar, flatten, formatted
from pipeline.core.spec import Spec
from pipeline.core.yaml_document import Document
from pipeline.tools.report.evidence import Evidence
from pipeline.tools.report.page import Cell, Excerpt, Number, PageSection, Pairs, Table

PRESETS = Path("presets")
MOST_CHANGED = 12
MOST_LAYERS = 60
LONGEST = 160
TASKS = {"classification": "classification", "language_modeling": "language modeling", "sequence": "texts to texts"}
NOT_SET = "not set"


class Preset(NamedTuple):
    name: str
    params: Mapping[str, Scalar]
    changed: tuple[str, ...]
    """The keys whose values differ from the training of the model."""


def summary(evidence: Evidence) -> PageSection:
    manifest, preset = evidence.manifest, nearest_preset(evidence.params, evidence.paths.top / PRESETS)
    settings = manifest.inference.model
    num_bytes = sum(each.nbytes for each in evidence.model.network.state_dict().values())
    facts: list[tuple[str, Cell]] = [
        ("architecture", f"{settings.title} ({type(evidence.model.network).__name__})"),
        ("task", task_name(manifest.spec)),
        ("input", describe_inputs(manifest.spec)),
        ("outputs", Number(manifest.spec.num_outputs)),
        ("parameters", Number(sum(parameter.numel() for parameter in evidence.model.network.parameters()))),
        ("weights", f"{num_bytes / 1e6:.2f} MB, trained in {manifest.precision}"),
        ("weights of step", Number(manifest.step)),
        ("SHA-256", evidence.digest),
    ]
    if manifest.ended_at is not None:
        facts.append(("ended early", f"after step {manifest.ended_at}, by a non-finite value"))
    if settings.weights is not None:
        facts.append(("started from", f"{settings.weights} (SHA-256 {manifest.inputs.get('weights', 'unknown')})"))
    if preset:
        others = f", with other values of {', '.join(preset.changed)}" if preset.changed else ""
        facts.append(("preset", f"{preset.name}{others}"))
    return PageSection("Model", (Pairs(tuple(facts)), parameters(evidence.params, preset), layers(evidence.model.network)))


def task_name(spec: Spec) -> str:
    """Return the task in words, such as `image classification`."""
    kind = TASKS.get(spec.targets.kind, spec.targets.kind)
    return kind if spec.targets.per_token or spec.targets.paired else f"{spec.inputs.kind} {kind}"


def describe_inputs(spec: Spec) -> str:
    inputs = spec.inputs
    if isinstance(inputs, ImageInputs):
        white = f"; in files of more than 8 bits per pixel, {inputs.white} is white" if inputs.white else ""
        return f"images of {inputs.height} x {inputs.width} pixels, {inputs.channels} channel{'' if inputs.channels == 1 else 's'}{white}"
    if isinstance(inputs, TextInputs):
        return f"texts of up to {inputs.length} tokens; {inputs.tokenizer.kind} tokenizer with {inputs.num_tokens:,} tokens"
    if isinstance(inputs, TextPairInputs):
        lengths = f"{inputs.length} tokens, and the texts to write of up to {inputs.target_length}"
        return f"texts of up to {lengths}; {inputs.tokenizer.kind} tokenizer with {inputs.num_tokens:,} tokens"
    return f"{inputs.kind}, shape {inputs.row_shape}"


def nearest_preset(params: Mapping[str, Scalar], folder: Path) -> Preset | None:
    """Return the preset of the same architecture that differs from `params` in the fewest values; None if all differ in more than MOST_CHANGED.

    Only sections that `params` has are compared.
    """
    sections, found = {name.partition(".")[0] for name in params}, list[Preset]()
    for path in sorted(folder.glob("*.yaml")):
        with suppress(Refusal):  # the user's own file
            preset = flatten({name: value for name, value in Document.read(path).data.items() if name in sections})
            changed = tuple(name for name, _ in identity.differences(preset, params))
            if len(changed) <= MOST_CHANGED and preset.get("model.name") == params.get("model.name"):
                found.append(Preset(path.stem, preset, changed))
    return min(found, key=lambda preset: len(preset.changed), default=None)


def parameters(params: Mapping[str, Scalar], preset: Preset | None) -> Table:
    """Return a table of all parameters. Beside a value that differs from the preset's, the table has the preset's value."""
    other = {name: shown(preset.params.get(name, NOT_SET)) for name in preset.changed} if preset else {}
    rows = tuple((name, shown(value), other.get(name, "")) for name, value in params.items())
    header = ("parameter", "value", f"preset {preset.name}" if preset else "")
    return Table(header, rows, summary="All parameters").without_empty_columns()


def shown(value: Scalar) -> str:
    return untrusted.shown(formatted(value), LONGEST)


def layers(network: nn.Module) -> Table:
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
    return Table(("name", "layer", "parameters"), rows, summary="Layers")


UNKNOWN = "unknown"
RECORDED = {"python": "Python", "driver": "NVIDIA driver", "image.digest": "image"}
NAMELESS = ("none", UNKNOWN)
PARAMS, CODE = "params.yaml", "pipeline/"
LONGEST_CHANGES = 400


def provenance_section(evidence: Evidence) -> PageSection:
    manifest = evidence.manifest
    facts = [("commit", commit_line(evidence))]
    if evidence.run:
        facts.append(("run", evidence.run.name))
    facts += [(f"digest of {name}", manifest.inputs[each]) for each, name in identity.DIGESTS.items() if each in manifest.inputs]
    facts.append(("seed", str(manifest.params.get("seed", UNKNOWN))))
    facts += machine_facts(evidence)
    return PageSection("Provenance", (Pairs(tuple(facts)),))


def commit_line(evidence: Evidence) -> str:
    if not evidence.run and not evidence.facts.provenance:
        return "unknown: no journal of the training is here"
    commit, changes = recorded(evidence, "git.commit"), changes_of(evidence)
    return f"{commit}, with uncommitted changes: {listed(changes)}" if changes else commit


def listed(changes: list[str]) -> str:
    return untrusted.shown(", ".join(changes), LONGEST_CHANGES)


def changes_of(evidence: Evidence) -> list[str]:
    """Return the uncommitted changes of the training, one line of `git status` for each file."""
    return recorded(evidence, "git.difference").splitlines()[1:]


def recorded(evidence: Evidence, name: str) -> str:
    return evidence.facts.provenance.get(name, UNKNOWN)


def machine_facts(evidence: Evidence) -> list[tuple[str, str]]:
    """Return the machine and the libraries from the model file, on which its bytes depend, and further facts from the journal."""
    fingerprint = evidence.manifest.fingerprint
    libraries = fingerprint.get("libraries", {})
    versions = libraries if isinstance(libraries, dict) else {}
    processes = f", {fingerprint['processes']} processes" if "processes" in fingerprint else ""
    cpu = f", {fingerprint['cpu']}" if "cpu" in fingerprint else ""
    threads = fingerprint.get("threads")
    on_threads = counted(threads, "thread") if isinstance(threads, int) else "unknown threads"
    machine = f"{fingerprint.get('device')}, {fingerprint.get('name')}{cpu}, {on_threads}{processes}"
    more = [(title, recorded(evidence, name)) for name, title in RECORDED.items()]
    return [
        ("machine", machine),
        ("libraries", ", ".join(f"{name} {version}" for name, version in versions.items())),
        *((title, value) for title, value in more if not value.startswith(NAMELESS)),
    ]


def reproduction(evidence: Evidence) -> PageSection:
    """Return the commands that train the model again, and the digest of the model file that they must produce."""
    fingerprint, commit = evidence.manifest.fingerprint, recorded(evidence, "git.commit")
    settings = {"PIPELINE_DEVICE": "device", "PIPELINE_THREADS": "threads", "PIPELINE_PROCESSES": "processes"}
    # quoted: the fingerprint of an untrusted model file may contain anything
    variables = [f"{name}={shlex.quote(str(fingerprint[field]))}" for name, field in settings.items() if field in fingerprint]
    flags = fingerprint.get("flags", {})
    set_flags = {name: value for name, value in flags.items() if value} if isinstance(flags, dict) else {}
    variables += [f"{shlex.quote(name)}={shlex.quote(str(value))}" for name, value in set_flags.items()]
    lines = [
        "# check out the commit with the code of this model" if commit.startswith(UNKNOWN) else f"git checkout {shlex.quote(commit)}",
        "make setup",
        *setting_parameters(evidence),
        " ".join([*variables, "dvc repro"]),
        "sha256sum models/model.safetensors",
    ]
    result = f"The last line must print {evidence.digest}, on a machine of the same kind (above)."
    return PageSection("Reproduce", (Excerpt("", "\n".join(lines)), result))


def setting_parameters(evidence: Evidence) -> list[str]:
    """Return the commands that write the model's parameters to `params.yaml`; [] if the `params.yaml` of the commit has them."""
    if recorded(evidence, "git.difference") == "none":
        return []
    # untracked files outside the code, such as a report, decide no result
    others = [line for line in changes_of(evidence) if not line.endswith(PARAMS) and (CODE in line or not line.startswith("??"))]
    lost = [f"# the uncommitted changes are needed too: {listed(others)}"] if others else []
    if "source.name" not in evidence.params:
        lost.append(f"# the source of the data is not known here: write its section into {PARAMS}")
    preset = nearest_preset(evidence.params, evidence.paths.top / PRESETS)
    if preset is None:
        return [*lost, f"# write the parameters above to {PARAMS}"]
    values = [shlex.quote(value) for value in (f"preset={preset.name}", *assignments(evidence.params, preset))]
    return [*lost, f"python -m pipeline set {' '.join(values)}"]


def assignments(params: Mapping[str, Scalar], preset: Preset) -> list[str]:
    """Return the arguments for `set` that change the parameters of `preset` to `params`.

    If a section has another `name`, such as `optimizer.name`, the first argument for it, such as `optimizer=sgd`, replaces the whole section,
    and arguments for all its values follow.
    """
    names = [name for name in preset.changed if name.endswith(".name") and name in params]
    replaced = tuple(name.removesuffix("name") for name in names)
    members = [f"{name.removesuffix('.name')}={formatted(params[name])}" for name in names]
    others = [name for name in params if name not in names and (name in preset.changed or name.startswith(replaced))]
    return [*members, *(f"{name}={formatted(params[name])}" for name in others)]
