"""The identity of a training: digests of all inputs that dvc.yaml lists for its stage, and the properties of the machine that change
results.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from pipeline.core import files
from pipeline.core.refusal import Refusal
from pipeline.core.section import ValueOf, leaves
from pipeline.core.yaml_document import Document

REFERENCE = re.compile(r"\$\{([\w.]+)\}")
DIGESTS = {"data": "prepared data", "code": "code", "lock": "requirements.lock", "weights": "starting weights"}
"""The names of the digests in a RunIdentity and in the manifest of a model file, and their words in messages."""


class Difference(NamedTuple):
    name: str
    values: tuple[Any, ...]
    """The value in each of the compared mappings."""


def differences(*found: Mapping[str, Any], missing: Any = "missing") -> list[Difference]:
    """Return each name whose value differs among the mappings. `missing` stands for the value in a mapping that lacks the name.

    Nested mappings are compared as values: use `section.leaves` to compare their members.
    """
    first, *others = found
    names = dict.fromkeys(name for each in found for name in each)
    changed = (name for name in names if any((name in first, first.get(name)) != (name in each, each.get(name)) for each in others))
    return [Difference(name, tuple(each.get(name, missing) for each in found)) for name in changed]


@dataclass(frozen=True)
class RunIdentity:
    """Everything that determines the result of a training.

    `data`, `code`, `lock` and `weights` are SHA-256 digests of the prepared data, the Python code, the lock file of packages, and the file
    that the parameter `model.weights` names. `weights` is None if the training does not start from such a file. `params` are the sections
    of params.yaml that the training uses. `fingerprint` has the properties of the machine that change results.
    """

    data: str
    code: str
    lock: str
    params: Mapping[str, Any]
    fingerprint: Mapping[str, Any]
    weights: str | None = None

    @property
    def digests(self) -> dict[str, str]:
        weights = {} if self.weights is None else {"weights": self.weights}
        return {"data": self.data, "code": self.code, "lock": self.lock, **weights}

    @property
    def record(self) -> dict[str, Any]:
        return {**self.digests, "params": dict(self.params), "fingerprint": dict(self.fingerprint)}

    @property
    def parts(self) -> dict[str, Any]:
        """Everything in this identity, by the words of messages: digests, parameters such as `optimizer.momentum`, and `machine.threads`."""
        digests = {DIGESTS[name]: digest for name, digest in self.digests.items()}
        return {**digests, **dict(leaves(self.params)), **{f"machine.{key}": value for key, value in leaves(self.fingerprint)}}

    def differences(self, other: Self) -> list[Difference]:
        """Return all parts that differ, with the values in this identity and in the other one."""
        return differences(self.parts, other.parts)

    def differs_only_in_machine(self, other: Self) -> bool:
        return replace(self, fingerprint=other.fingerprint) == other

    @property
    def key(self) -> str:
        """16 hexadecimal digits. The keys of two trainings are equal if and only if all values in their RunIdentity are equal."""
        return files.digest_of(self.record)[:16]


def dependencies(stage: str, params: Mapping[str, Any], folder: Path) -> list[str]:
    """Return the dependency paths of a stage from `folder/dvc.yaml`, with each `${...}` replaced by its value in `params`.

    Raises Refusal if dvc.yaml is missing or does not describe the stage.
    """
    listed = read_stage(stage, folder)["deps"]
    return [REFERENCE.sub(lambda match: str(ValueOf(match[1]).found_in(params)), path) for path in listed]


def read_stage(stage: str, folder: Path) -> dict[str, Any]:
    path = folder / "dvc.yaml"
    if not path.exists():
        raise Refusal(f"{path}: is missing: run this command in the top folder of the project's checkout")
    try:
        content: dict[str, Any] = Document.read(path).data["stages"][stage]
        "".join([*content["deps"], *content["params"]])  # raises TypeError for anything but strings
    except (Refusal, LookupError, TypeError):
        raise Refusal(f"{path}: does not describe the stage {stage}: undo its changes with `git restore {path}`") from None
    return content


def code_digest(paths: Iterable[str], folder: Path) -> str:
    """Return one digest of the Python code that a stage depends on: of its `modules`."""
    return files.digest_of({path: files.digest(folder / path) for path in modules(paths, folder)})


def modules(paths: Iterable[str], folder: Path) -> list[str]:
    """Return the `.py` files among `paths`, and all `.py` files but `predict.py`, which `.dvcignore` names, inside those of `paths` that are folders below `pipeline/`, sorted.

    `paths` are the dependencies of a stage, relative to the checkout `folder`. Other dependencies, such as data, are left out.
    """
    found = {path for path in paths if path.endswith(".py")}
    for path in paths:
        if path.startswith("pipeline/") and path not in found:
            found |= {module.relative_to(folder).as_posix() for module in (folder / path).rglob("*.py") if module.name != "predict.py"}
    return sorted(found)
