"""Lists what differs between models in all that can affect a result: parameters, data, code, lock file and machine."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

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


@dataclass(frozen=True)
class DifferingRow:
    """One property whose values differ. `values` has a text for each model: None if the model lacks the property, UNKNOWN if it is not recorded.

    `remark` adds detail, such as the files that differ between two commits; it may be "".
    """

    kind: Kind
    name: str
    values: tuple[Value, ...]
    remark: str = ""


@dataclass(frozen=True)
class Differences:
    """All differences between `models`.

    `rows` has the parameters first; the values of a row are in the order of `models`. `notes` say which models are equal and which facts are
    not recorded.
    """

    models: tuple[ComparedModel, ...]
    rows: tuple[DifferingRow, ...]
    notes: tuple[str, ...]

    @property
    def causes(self) -> tuple[str, ...]:
        """Return the possible causes of different scores: each parameter by its key, and every other kind of difference in words.

        Commits and uncommitted changes are a cause only if the code that `train` imported differs. That code includes the file of the
        architecture, so it usually differs if `model.name` differs. In this case it is not listed as a further cause, provided that the commits
        and the uncommitted changes are equal. Parameters of `source` affect a result only through the data, and are listed with the data.
        """
        source = [row.name for row in self.rows if row.name.startswith(SOURCE)]
        rows = [row for row in self.rows if row.name not in source and (row.kind != "code" or self._is_code_a_cause)]
        named = {**CAUSES, "data": f"{CAUSES['data']} ({', '.join(source)})" if source else CAUSES["data"]}
        return tuple(dict.fromkeys(row.name if row.kind == "parameters" else named[row.kind] for row in rows))

    @property
    def conclusion(self) -> str:
        """Return a sentence that lists all causes, so that a reader does not attribute a score to one of several changes."""
        causes = self.causes
        if len(causes) > 1:
            result = f"A difference of the scores can come from {', '.join(causes[:-1])} or {causes[-1]}, and cannot be attributed to one of them."
        elif causes:
            result = f"Only {causes[0]} {'differ' if causes[0].startswith(CAUSES['data']) else 'differs'}."
        elif len({model.digest for model in self.models}) == 1:
            result = "Same bytes: the model files are identical."
        else:
            result = "The model files differ, but nothing that is recorded and can affect a result does."
        aside = any(row.kind == "code" for row in self.rows) and not self._differ_in_code
        return f"{result} The commits or uncommitted changes differ too, but in no code that train imports." if aside else result

    @property
    def _is_code_a_cause(self) -> bool:
        named = any(row.name == MODEL for row in self.rows) and {CODE} == {row.name for row in self.rows if row.kind == "code"}
        is_of_model = named and all(model.facts.provenance.get("git.commit") for model in self.models)
        return self._differ_in_code and not is_of_model

    @property
    def _differ_in_code(self) -> bool:
        return any(row.name == CODE for row in self.rows)


def differences(models: Sequence[ComparedModel]) -> Differences:
    """Compare two or more models by their metadata and by what is recorded about them. No model is built or run."""
    rows = [*parameters(models), *data(models), *code(models), *hardware(models)]
    return Differences(tuple(models), tuple(rows), tuple(notes(models)))


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
    """Yield the prepared data, with the splits that differ, and the file of `model.weights`."""
    whole = list(differing("data", [{DIGESTS["data"]: short(model.manifest.inputs.get("data"))} for model in models]))
    yield from whole
    if whole:
        yield from differing(
            "data", [{f"{name} split": short(each) for name, each in model.facts.splits.items()} or None for model in models]
        )
    yield from differing("data", [{DIGESTS["weights"]: short(model.manifest.inputs.get("weights"))} for model in models])


def code(models: Sequence[ComparedModel]) -> Iterator[DifferingRow]:
    """Yield the code that `train` imported, the commit, the uncommitted changes, and the digest of requirements.lock.

    Commits that differ only in params.yaml and results count as equal. So do uncommitted changes of these files. Parameters and results are
    compared separately.
    """
    digests = [short(model.manifest.inputs.get("code")) for model in models]
    remark = "includes the file of the model" if len({flat(model.manifest.params)[MODEL] for model in models}) > 1 else ""
    yield from differing("code", [{CODE: each} for each in digests], remark=remark)
    commits = [model.facts.provenance.get("git.commit", UNKNOWN) for model in models]
    changed = [files_between(commits[0], each) for each in commits[1:]]
    if any(changed) or None in changed:
        texts = (f"{counted(len(each), 'file')} changed: {listed(each, MOST_FILES)}" for each in changed if each)
        yield from differing("code", [{"commit": provenance.shown(each)} for each in commits], remark="; ".join(dict.fromkeys(texts)))
    changes = [model.facts.provenance.get("git.difference", UNKNOWN) for model in models]
    yield from differing("code", [{"uncommitted changes": provenance.changed_code(each)} for each in changes])
    yield from differing("lock", [{DIGESTS["lock"]: short(model.manifest.inputs.get("lock"))} for model in models])


def hardware(models: Sequence[ComparedModel]) -> Iterator[DifferingRow]:
    """Yield the machine properties that affect the bits of a result, the precision, the memory format, the micro-batch sizes after OOM, and `MACHINE_FACTS`."""
    machines = []
    for model in models:
        changes = [f"{each['micro_batch_size']} from step {each['step']}" for each in model.manifest.switches]
        machines.append(
            {
                **flat(model.manifest.fingerprint),
                "precision": model.manifest.precision,
                "channels_last": formatted(model.manifest.channels_last),
                "micro-batch": ", ".join(changes) or None,
            }
        )
    yield from differing("hardware", machines)
    for name in MACHINE_FACTS:
        yield from differing("hardware", [{name: provenance.shown(model.facts.provenance.get(name, UNKNOWN))} for model in models])


def notes(models: Sequence[ComparedModel]) -> Iterator[str]:
    """Yield which models are equal, and what is not recorded."""
    for number, model in enumerate(models):
        if equal := next((other for other in models[:number] if other.digest == model.digest), None):
            yield f"{model.name}: has the same bytes as {equal.name}"
        if not model.facts.params:
            yield f"{model.name}: this checkout has no run of this model: what only a run records is unknown, such as its source parameters"


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


def files_between(one: str, other: str) -> list[str] | None:
    """Return the files of code that differ between two commits; [] also if a commit is unknown, and None if git cannot compare them."""
    return [] if UNKNOWN in (provenance.shown(one), provenance.shown(other)) else provenance.code_between(one, other)
