"""The sections on the provenance of the model, and on the commands that reproduce it."""

import shlex
from collections.abc import Mapping

from pipeline.core import identity, untrusted
from pipeline.core.refusal import Refusal, counted
from pipeline.core.section import Scalar, formatted
from pipeline.tools.report.content import Commands, Pairs, Paragraph, Section
from pipeline.tools.report.evidence import Evidence
from pipeline.tools.report.sections.model import PRESETS, Preset, nearest_preset
from pipeline.tracking import provenance
from pipeline.tracking.provenance import Unknown

UNKNOWN = "unknown"
DIGESTS = {"data": "prepared data", "code": "code", "lock": "requirements.lock", "weights": "starting weights"}
RECORDED = {"python": "Python", "driver": "NVIDIA driver", "image.digest": "image"}
NAMELESS = ("none", UNKNOWN)
PARAMS, CODE = "params.yaml", "pipeline/"
COMMIT, DIFFERENCE = "git.commit", "git.difference"
"""The names in the journal of the training's commit and of the uncommitted changes."""
LONGEST = 400


def section(evidence: Evidence) -> Section:
    manifest = evidence.manifest
    facts = [("commit", commit_line(evidence))]
    if evidence.run:
        facts.append(("run", evidence.run.name))
    facts += [(f"digest of {name}", manifest.inputs[each]) for each, name in DIGESTS.items() if each in manifest.inputs]
    facts.append(("seed", str(manifest.params.get("seed", UNKNOWN))))
    facts += machine_facts(evidence)
    return Section("Provenance", (Pairs(tuple(facts)),))


def commit_line(evidence: Evidence) -> str:
    commit, changes = code_of(evidence)
    if commit is None:
        return recorded(evidence, COMMIT) if evidence.run else "unknown: no journal of the training is here"
    origin = "" if evidence.run else " (that of this checkout, whose code the model was trained with)"
    return f"{commit}{origin}, with uncommitted changes: {listed(changes)}" if changes else f"{commit}{origin}"


def listed(changes: list[str]) -> str:
    return untrusted.shown(", ".join(changes), LONGEST)


def code_of(evidence: Evidence) -> tuple[str | None, list[str]]:
    """Return the commit of the training, and the uncommitted changes, one line of `git status` for each file.

    They come from the journal. Without a journal, they are those of this checkout if the model was trained with its code, else (None, []).
    """
    if evidence.run:
        commit = recorded(evidence, COMMIT)
        return None if commit.startswith(UNKNOWN) else commit, recorded(evidence, DIFFERENCE).splitlines()[1:]
    top = evidence.paths.top
    try:
        code = identity.code_digest(identity.dependencies("train", evidence.manifest.params, top), top)
        if code != evidence.manifest.inputs.get("code"):
            return None, []
        return provenance.git("rev-parse", "HEAD"), provenance.difference().splitlines()[1:]
    except (Unknown, Refusal, OSError):
        return None, []


def recorded(evidence: Evidence, name: str) -> str:
    return str(evidence.run.provenance.get(name, UNKNOWN)) if evidence.run else UNKNOWN


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


def reproduction(evidence: Evidence) -> Section:
    """Return the commands that train the model again, and the digest of the model file that they must produce."""
    fingerprint, (commit, changes) = evidence.manifest.fingerprint, code_of(evidence)
    settings = {"PIPELINE_DEVICE": "device", "PIPELINE_THREADS": "threads", "PIPELINE_PROCESSES": "processes"}
    # quoted: the fingerprint of an untrusted model file may contain anything
    variables = [f"{name}={shlex.quote(str(fingerprint[field]))}" for name, field in settings.items() if field in fingerprint]
    flags = fingerprint.get("flags", {})
    set_flags = {name: value for name, value in flags.items() if value} if isinstance(flags, dict) else {}
    variables += [f"{shlex.quote(name)}={shlex.quote(value)}" for name, value in set_flags.items()]
    lines = [
        f"git checkout {shlex.quote(commit)}" if commit else "# check out the commit with the code of this model",
        "make setup",
        *parameters(evidence, changes),
        " ".join([*variables, "dvc repro"]),
        "sha256sum models/model.safetensors",
    ]
    result = f"The last line must print {evidence.digest}, on a machine of the same kind (above)."
    return Section("Reproduce", (Commands(tuple(lines)), Paragraph(result)))


def parameters(evidence: Evidence, changes: list[str]) -> list[str]:
    """Return the commands that write the model's parameters to `params.yaml`; [] if the `params.yaml` of the commit has them.

    `changes` are the uncommitted changes of the training.
    """
    if recorded(evidence, DIFFERENCE) == "none":
        return []
    # untracked files outside the code, such as a report, decide no result
    others = [line for line in changes if not line.endswith(PARAMS) and (CODE in line or not line.startswith("??"))]
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
