"""The parameters and the code of a stage, as they were when it began.

DVC records both as they are when a stage has ended. If they were edited meanwhile, it would record the result for values that did not give it,
and never run the stage with the new ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.flatten import Scalar, flatten, formatted
from pipeline.io import files
from pipeline.params.yaml_document import Document
from pipeline.paths import Paths
from pipeline.refusal import Refusal
from pipeline.runtime import run_identity

MOST_NAMED = 3


@dataclass(frozen=True)
class StageInputs:
    """What DVC records of a stage: the sections of `params.yaml` that dvc.yaml lists for it, by dotted key, and a digest of its code."""

    stage: str
    sections: tuple[str, ...]
    listed: tuple[str, ...]
    params: Mapping[str, Scalar]
    code: str | None

    @classmethod
    def read(cls, stage: str, data: Mapping[str, Any], paths: Paths) -> "StageInputs":
        """Return the inputs of `stage`. `data` is the content of `params.yaml`. Raises Refusal if dvc.yaml does not describe the stage."""
        sections = tuple(run_identity.read_stage(stage, paths.top)["params"])
        listed = tuple(run_identity.dependencies(stage, data, paths.top))
        return cls(stage, sections, listed, params_of(sections, data), code_of(listed, paths))

    def refuse_changes(self, paths: Paths) -> None:
        """Raise Refusal if the parameters or the code differ now from those with which the stage began."""
        found, missing = params_of(self.sections, Document.read(paths.params).data), object()
        keys = [key for key in {**self.params, **found} if self.params.get(key, missing) != found.get(key, missing)]
        if keys:
            changes = [f"{key}: was {shown(self.params, key)} when {self.stage} began, and is {shown(found, key)} now" for key in keys]
            more = f", and {len(keys) - MOST_NAMED} more" if len(keys) > MOST_NAMED else ""
            raise Refusal(
                f"{'; '.join(changes[:MOST_NAMED])}{more}. DVC would record the new values for a result of the old ones. {self.remedy('values')}"
            )
        if code_of(self.listed, paths) != self.code:
            raise Refusal(
                f"the code of {self.stage} was changed while it ran (`git status` may show where). DVC would record the new code for a result of "
                f"the old one. {self.remedy('code')}"
            )

    def remedy(self, what: str) -> str:
        continues = ", which continues from the last checkpoint" if self.stage == "train" else ""
        return f"To keep the old {what}, restore the file and repeat the command{continues}. To use the new {what}, only repeat it"


def params_of(sections: tuple[str, ...], data: Mapping[str, Any]) -> dict[str, Scalar]:
    return flatten({name: data[name] for name in sections if name in data})


def shown(params: Mapping[str, Scalar], key: str) -> str:
    return formatted(params[key]) if key in params else "missing"


def code_of(listed: tuple[str, ...], paths: Paths) -> str | None:
    """Return a digest of the `.py` files among the dependencies `listed`, and of the lock file. Return None if one of them is missing."""
    try:
        return files.digest_of([run_identity.code_digest(list(listed), paths.top), files.digest(paths.lock)])
    except FileNotFoundError:
        return None
