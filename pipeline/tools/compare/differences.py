"""Lists what differs between models in all that can affect a result: parameters, data, code, lock file and machine."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from pipeline.core import identity
from pipeline.core.identity import DIGESTS
from pipeline.core.params import upgraded
from pipeline.core.refusal import counted, listed
from pipeline.core.section import flatten, formatted
from pipeline.runs import provenance
from pipeline.tools.compare.models import ComparedModel
from pipeline.train.params import TrainParams

Kind = Literal["parameters", "data", "code", "lock", "hardware"]
Value = str | None
UNKNOWN = "unknown"
SHORT = 12
MOST_FILES = 3
CODE, SOURCE, MODEL = f"{DIGESTS['code']} of train", "source.", "model.name"
MACHINE_FACTS = ("python", "gpu", "driver", "image.digest")
"""Recorded facts about the machine that are compared in addition to its fingerprint. Host names are not compared: every container has its own."""
CAUSES: dict[Kind, str] = {"data": "the data", "code": "the code", "lock": DIGESTS["lock"], "hardware": "the machine"}


class DifferingRow(NamedTuple):
    """One property whose values differ. `values` has a text for each model: None if the model lacks the property, UNKNOWN if it is not recorded.

    `remark` adds detail, such as the files that differ between two commits; it may be "".
    """

    kind: Kind
    name: str
    values: tuple[Value, ...]
    remark: str = ""


def differences(models: Sequence[ComparedModel]) -> list[DifferingRow]:
    """Compare two or more models by their metadata and by what is recorded about them, the parameters first. No model is built or run.

    The values of a row are in the order of the models.
    """
    return [*parameters(models), *data(models), *code(models), *hardware(models)]


def conclusion(first: ComparedModel, second: ComparedModel) -> str:
    """Return a sentence that lists all causes of different scores, so that a reader does not attribute a score to one of several changes."""
    if first.digest == second.digest:
        return "Same bytes: the model files are identical."
    found = causes(first, second)
    if len(found) > 1:
        return f"A difference of the scores can come from {', '.join(found[:-1])} or {found[-1]}, and cannot be attributed to one of them."
    return f"Of what is recorded and can affect a result, {f'only {found[0]}' if found else 'nothing'} differs."


def causes(first: ComparedModel, second: ComparedModel) -> list[str]:
    """Return the possible causes of different scores: each parameter by its key, and every other kind of difference in words.

    Commits and uncommitted changes are a cause only if the code that `train` imported differs. That code includes the file of the
    architecture, so it usually differs if `model.name` differs. In this case it is not listed as a further cause, provided that the commits
    and the uncommitted changes are equal. Parameters of `source` affect a result only through the data, and are listed with the data.
    """
    rows = differences([first, second])
    source = [row.name for row in rows if row.name.startswith(SOURCE)]
    named = {**CAUSES, "data": f"{CAUSES['data']} ({', '.join(source)})" if source else CAUSES["data"]}
    changed = {row.name for row in rows if row.kind == "code"}
    is_known = all(model.facts.provenance.get("git.commit") for model in (first, second))
    is_of_model = changed == {CODE} and is_known and any(row.name == MODEL for row in rows)
    if CODE not in changed or is_of_model:
        rows = [row for row in rows if row.kind != "code"]
    return list(dict.fromkeys(row.name if row.kind == "parameters" else named[row.kind] for row in rows if row.name not in source))


def parameters(models: Sequence[ComparedModel]) -> Iterator[DifferingRow]:
    """Yield the parameters of the training, then those of `source` and `evaluate`, which are recorded outside of the model file.

    Keys that were added or moved since a file was written have the values that kept its result.
    """
    params = [upgraded(model.manifest.params, TrainParams)[0] for model in models]
    yield from differing("parameters", [flat(each) for each in params])
    for section in ("source", "evaluate"):
        found = [{key: value for key, value in model.facts.params.items() if key.startswith(f"{section}.")} for model in models]
        yield from differing("parameters", [each or None for each in found])


def data(models: Sequence[ComparedModel]) -> Iterator[DifferingRow]:
    """Yield the prepared data, and the file of `model.weights`."""
    for name in ("data", "weights"):
        yield from differing("data", [{DIGESTS[name]: short(model.manifest.inputs.get(name))} for model in models])


def code(models: Sequence[ComparedModel]) -> Iterator[DifferingRow]:
    """Yield the code that `train` imported, the commit, the uncommitted changes, and the digest of requirements.lock.

    Commits that differ only in params.yaml and results count as equal. So do uncommitted changes of these files. Parameters and results are
    compared separately.
    """
    yield from differing("code", [{CODE: short(model.manifest.inputs.get("code"))} for model in models])
    commits = [model.facts.provenance.get("git.commit", UNKNOWN) for model in models]
    known = [each for each in commits if provenance.shown(each) != UNKNOWN]
    changed = [provenance.code_between(known[0], each) for each in known[1:]]
    if any(changed) or None in changed:
        texts = (f"{counted(len(each), 'file')} changed: {listed(each, MOST_FILES)}" for each in changed if each)
        yield from differing("code", [{"commit": provenance.shown(each)} for each in commits], remark="; ".join(dict.fromkeys(texts)))
    changes = [model.facts.provenance.get("git.difference", UNKNOWN) for model in models]
    yield from differing("code", [{"uncommitted changes": provenance.changed_code(each)} for each in changes])
    yield from differing("lock", [{DIGESTS["lock"]: short(model.manifest.inputs.get("lock"))} for model in models])


def hardware(models: Sequence[ComparedModel]) -> Iterator[DifferingRow]:
    """Yield the machine properties that affect the bits of a result, the precision, the memory format, the micro-batch sizes after OOM, and `MACHINE_FACTS`."""
    properties = ("fingerprint", "precision", "channels_last", "switches")  # switches are the micro-batches after OOM
    machines = [flat(model.manifest.model_dump(mode="json", include={*properties})) for model in models]
    yield from differing("hardware", [{key.removeprefix("fingerprint."): value for key, value in each.items()} for each in machines])
    for name in MACHINE_FACTS:
        yield from differing("hardware", [{name: provenance.shown(model.facts.provenance.get(name, UNKNOWN))} for model in models])


def differing(kind: Kind, found: Sequence[Mapping[str, Value] | None], *, remark: str = "") -> Iterator[DifferingRow]:
    """Yield a row for each key whose known values differ.

    `found` has one mapping for each model, or None if nothing is recorded; all values of this model are then UNKNOWN.
    """
    unknown = {key: UNKNOWN for each in found if each for key in each}
    for key, values in identity.differences(*(unknown if each is None else each for each in found), missing=None):
        if len({*values} - {UNKNOWN}) > 1:
            yield DifferingRow(kind, key, values, remark)


def flat(nested: Mapping[str, object]) -> dict[str, Value]:
    return {key: formatted(value) for key, value in flatten(nested).items()}


def short(digest: str | None) -> Value:
    return digest and digest[:SHORT]
