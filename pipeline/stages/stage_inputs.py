"""The parameters and the code of a stage, as they were when it began.

DVC records both as they are when a stage has ended. If they were edited meanwhile, DVC would store the result under parameters that did not give
it, and never run the stage with these.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.flatten import Scalar, flatten, formatted
from pipeline.io import files
from pipeline.params.load import with_line
from pipeline.params.yaml_document import Document
from pipeline.paths import Paths
from pipeline.refusal import Refusal
from pipeline.runtime import run_identity

MOST_NAMED = 3
SETTLES_WITHIN_S, RETRY_S = 5.0, 0.25
"""How long to wait for the old content to return, and how often to look: `dvc exp run --queue` changes the checkout for a second."""


@dataclass(frozen=True)
class StageInputs:
    """The parameters of a stage, by dotted key, and the digest of each file of its code, as DVC records them.

    `sections` are the sections of params.yaml, and `listed` the dependencies, that dvc.yaml lists for the stage.
    """

    stage: str
    sections: tuple[str, ...]
    listed: tuple[str, ...]
    params: Mapping[str, Scalar]
    code: Mapping[str, str]

    @classmethod
    def read(cls, stage: str, data: Mapping[str, Any], paths: Paths) -> "StageInputs":
        """Return the inputs of `stage`. `data` is the content of `params.yaml`, which may be invalid.

        Raises Refusal if dvc.yaml does not describe the stage.
        """
        sections = tuple(run_identity.read_stage(stage, paths.top)["params"])
        try:
            listed = tuple(run_identity.dependencies(stage, data, paths.top))
        except (LookupError, TypeError):  # a parameter that dvc.yaml mentions is missing: validation will say so
            listed = ()
        return cls(stage, sections, listed, params_of(sections, data), code_of(listed, paths))

    def refuse_changes(self, paths: Paths) -> None:
        """Raise Refusal if the parameters or the code differ from those with which the stage began, and still do after SETTLES_WITHIN_S."""
        deadline = time.monotonic() + SETTLES_WITHIN_S
        while (problem := self.change(paths)) and time.monotonic() < deadline:
            time.sleep(RETRY_S)
        if problem:
            raise Refusal(problem)

    def change(self, paths: Paths) -> str | None:
        """Return a message about what differs now, with the remedy; None if nothing does."""
        try:
            document = Document.read(paths.params)
        except Refusal as refusal:
            return f"{refusal}. It could be read when {self.stage} began. {remedy('values', str(paths.params))}"
        params, code = params_of(self.sections, document.data), code_of(self.listed, paths)
        if keys := differing(self.params, params):
            changes = [f"{key}: was {shown(self.params, key)} when {self.stage} began, and is {shown(params, key)} now" for key in keys]
            return with_line(
                document, f"{joined(changes)}. DVC would store the result under the new values. {remedy('values', str(paths.params))}"
            )
        if names := differing(self.code, code):
            return f"{joined(names)}: changed while {self.stage} ran. DVC would store the result under the new code. {remedy('code', 'these files')}"
        return None


def params_of(sections: tuple[str, ...], data: Mapping[str, Any]) -> dict[str, Scalar]:
    return flatten({name: data[name] for name in sections if name in data})


def code_of(listed: tuple[str, ...], paths: Paths) -> dict[str, str]:
    """Return the digest of the lock file, and of each `.py` file among the dependencies `listed`, by path. Missing files are left out."""
    names = [*run_identity.modules(listed, paths.top), paths.lock.relative_to(paths.top).as_posix()]
    return {name: files.digest(paths.top / name) for name in names if (paths.top / name).is_file()}


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    missing = object()
    return [name for name in {**before, **now} if before.get(name, missing) != now.get(name, missing)]


def shown(params: Mapping[str, Scalar], key: str) -> str:
    return formatted(params[key]) if key in params else "missing"


def joined(texts: list[str]) -> str:
    more = [f"and {len(texts) - MOST_NAMED} more"] if len(texts) > MOST_NAMED else []
    return "; ".join([*texts[:MOST_NAMED], *more])


def remedy(what: str, where: str) -> str:
    return f"To keep the old {what}, restore {where} and repeat the command. To use the new {what}, just repeat the command"
