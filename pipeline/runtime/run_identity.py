"""What dvc.yaml lists as the inputs of a stage, digested: the identity of a result."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.io import files, untrusted
from pipeline.refusal import Refusal

BRACKET = re.compile(r"\[|(?<!\$)\{")
MOST_BYTES, MOST_BRACKETS = 20_000, 200
REFERENCE = re.compile(r"\$\{([\w.]+)\}")


@dataclass(frozen=True)
class Inputs:
    """SHA-256 of a stage's data, code and lock, the sections it lists, and the machine's fingerprint."""

    data: str
    code: str
    lock: str
    params: Mapping[str, Any]
    fingerprint: Mapping[str, Any]

    @property
    def digests(self) -> dict[str, str]:
        return {"data": self.data, "code": self.code, "lock": self.lock}

    @property
    def record(self) -> dict[str, Any]:
        return {**self.digests, "params": dict(self.params), "fingerprint": dict(self.fingerprint)}

    @property
    def key(self) -> str:
        """Names this training: equal for equal inputs on a machine of equal bits, different for all others."""
        return files.digest_of(self.record)[:16]


def dependencies(stage: str, params: Mapping[str, Any], folder: Path) -> list[str]:
    """The paths that dvc.yaml in `folder` lists for a stage, with the parameters filled in as DVC fills them."""
    listed = read_stage(stage, folder)["deps"]
    return [REFERENCE.sub(lambda match: str(look_up(params, match[1])), path) for path in listed]


def sections(stage: str, folder: Path) -> list[str]:
    """The top-level keys of params.yaml that dvc.yaml lists for a stage."""
    return list(read_stage(stage, folder)["params"])


def read_stage(stage: str, folder: Path) -> dict[str, Any]:
    path = folder / "dvc.yaml"
    try:
        text = untrusted.read(path, MOST_BYTES).decode("utf-8")
        refuse_brackets(text)
        content: dict[str, Any] = YAML(typ="safe", pure=True).load(text)["stages"][stage]
        "".join([*content["deps"], *content["params"]])  # raises for what is not text
    except FileNotFoundError:
        raise Refusal(f"{path}: is missing: run the pipeline at the top of its checkout") from None
    except (YAMLError, LookupError, TypeError, AttributeError, ValueError, OSError, RecursionError):
        raise Refusal(f"{path}: does not describe the stage {stage}: undo its changes with `git restore {path}`") from None
    return content


def refuse_brackets(text: str) -> None:
    """Raises ValueError for more than any dvc.yaml has, of which ruamel would take seconds."""
    if len(BRACKET.findall(text)) > MOST_BRACKETS:
        raise ValueError(f"more than {MOST_BRACKETS} brackets")


def look_up(params: Mapping[str, Any], dotted: str) -> Any:
    value: Any = params
    for part in dotted.split("."):
        value = value[part]
    return value


def code_digest(paths: list[str], folder: Path) -> str:
    """One digest of the Python files among the dependencies."""
    return files.digest_of({path: files.digest(folder / path) for path in paths if path.endswith(".py")})
