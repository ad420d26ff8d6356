"""The identity of a training: digests of all inputs that dvc.yaml lists for its stage, and the properties of the machine that change
results.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core import files
from pipeline.core.refusal import Refusal
from pipeline.core.section import ValueOf
from pipeline.core.yaml_document import Document

REFERENCE = re.compile(r"\$\{([\w.]+)\}")


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
    """Return the `.py` files among `paths`, and all `.py` files inside those of `paths` that are folders below `pipeline/`, sorted.

    `paths` are the dependencies of a stage, relative to the checkout `folder`. Other dependencies, such as data, are left out.
    """
    found = {path for path in paths if path.endswith(".py")}
    for path in paths:
        if path.startswith("pipeline/") and path not in found:
            found |= {module.relative_to(folder).as_posix() for module in (folder / path).rglob("*.py")}
    return sorted(found)
