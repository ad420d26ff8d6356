"""Where the model comes from, and the commands that make it again."""

import shlex

from pipeline.flatten import formatted
from pipeline.io import untrusted
from pipeline.provenance import revision
from pipeline.provenance.revision import Unknown
from pipeline.refusal import Refusal
from pipeline.report_page.content import Commands, Facts, Paragraph, Section
from pipeline.report_page.evidence import Evidence
from pipeline.report_page.sections.model import PRESETS, nearest_preset
from pipeline.runtime import run_identity

UNKNOWN = "unknown"
DIGESTS = {"data": "prepared data", "code": "code", "lock": "requirements.lock", "weights": "starting weights"}
RECORDED = {"python": "Python", "driver": "NVIDIA driver", "image.digest": "image"}
NAMELESS = ("none", UNKNOWN)
PARAMS = "params.yaml"
LONGEST = 400


def section(evidence: Evidence) -> Section:
    manifest = evidence.manifest
    facts = [("commit", commit_line(evidence))]
    if evidence.run:
        facts.append(("run", evidence.run.name))
    facts += [(f"digest of {name}", manifest.inputs[each]) for each, name in DIGESTS.items() if each in manifest.inputs]
    facts.append(("seed", str(manifest.params.get("seed", UNKNOWN))))
    facts += machine_facts(evidence)
    return Section("Provenance", (Facts(tuple(facts)),))


def commit_line(evidence: Evidence) -> str:
    commit = commit_of(evidence)
    if commit is None:
        return "unknown: no journal of the training is here"
    if evidence.run is None:
        return f"{commit} (that of this checkout, whose code the model was trained with)"
    changes = changed_files(evidence)
    return f"{commit}, with uncommitted changes: {untrusted.shown(', '.join(changes), LONGEST)}" if changes else commit


def changed_files(evidence: Evidence) -> list[str]:
    """Return the uncommitted changes that the journal recorded, one line of `git status` for each file."""
    return recorded(evidence, "git.difference").splitlines()[1:]


def commit_of(evidence: Evidence) -> str | None:
    """Return the commit of the training: that in the journal, or that of this checkout if its code is that of the model; else None."""
    if evidence.run:
        found = recorded(evidence, "git.commit")
        return None if found.startswith(UNKNOWN) else found
    try:
        code = run_identity.code_digest(
            run_identity.dependencies("train", evidence.manifest.params, evidence.paths.top), evidence.paths.top
        )
        return revision.git("rev-parse", "HEAD") if code == evidence.manifest.inputs.get("code") else None
    except (Unknown, Refusal, OSError):
        return None


def recorded(evidence: Evidence, name: str) -> str:
    return str(evidence.run.provenance.get(name, UNKNOWN)) if evidence.run else UNKNOWN


def machine_facts(evidence: Evidence) -> list[tuple[str, str]]:
    """Return the machine and the libraries that the bytes of the model depend on, and those that the journal recorded."""
    fingerprint = evidence.manifest.fingerprint
    libraries = fingerprint.get("libraries", {})
    versions = libraries if isinstance(libraries, dict) else {}
    processes = f", {fingerprint['processes']} processes" if "processes" in fingerprint else ""
    machine = f"{fingerprint.get('device')}, {fingerprint.get('name')}, {fingerprint.get('threads')} threads{processes}"
    more = [(title, recorded(evidence, name)) for name, title in RECORDED.items()]
    return [
        ("machine", machine),
        ("libraries", ", ".join(f"{name} {version}" for name, version in versions.items())),
        *((title, value) for title, value in more if not value.startswith(NAMELESS)),
    ]


def reproduction(evidence: Evidence) -> Section:
    """Return the commands that train the model again, and the digest of the file that they end in."""
    fingerprint, commit = evidence.manifest.fingerprint, commit_of(evidence)
    settings = f"PIPELINE_DEVICE={fingerprint.get('device', 'auto')} PIPELINE_THREADS={fingerprint.get('threads', 1)}"
    if "processes" in fingerprint:
        settings += f" PIPELINE_PROCESSES={fingerprint['processes']}"
    lines = [
        f"git checkout {commit}" if commit else "# check out the commit with the code of this model",
        "make setup",
        *parameters(evidence),
    ]
    lines += [f"{settings} dvc repro", "sha256sum models/model.safetensors"]
    result = f"The last line must print {evidence.digest}, on a machine of the same kind (above)."
    return Section("Reproduce", (Commands(tuple(lines)), Paragraph(result)))


def parameters(evidence: Evidence) -> list[str]:
    """Return the commands that write `params.yaml`, if the commit does not have the parameters of the model; [] if it has them."""
    if recorded(evidence, "git.difference") == "none":
        return []
    changes = [line for line in changed_files(evidence) if not line.endswith(PARAMS)]
    lost = [f"# the uncommitted changes are needed too: {untrusted.shown(', '.join(changes), LONGEST)}"] if changes else []
    preset = nearest_preset(evidence.params, evidence.paths.top / PRESETS)
    if preset is None:
        return [*lost, f"# write the parameters above to {PARAMS}"]
    values = [shlex.quote(f"{name}={formatted(evidence.params[name])}") for name in preset.changed if name in evidence.params]
    return [
        *lost,
        f"python -m pipeline preset {shlex.quote(preset.name)}",
        *([f"python -m pipeline set {' '.join(values)}"] if values else []),
    ]
