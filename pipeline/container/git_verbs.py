"""Commands of DVC that need Git, which a copy of a checkout or of the image's code does not have."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.refusal import Refusal

NEED_GIT = {"exp", "experiments", "diff"}


def refuse(words: Sequence[str], copy_of: Path | None) -> None:
    """Raises Refusal for `dvc exp ...` and `dvc ... diff` in a copy: DVC would advise to turn `core.no_scm` off, which ends in another error."""
    verbs = [word for word in words if not word.startswith("-")][:3]
    if copy_of and verbs[:1] == ["dvc"] and NEED_GIT & set(verbs):
        raise Refusal(
            f"`{' '.join(verbs)}` needs Git, and this runs in a copy of {copy_of}, which has none: "
            'run it in a checkout, with `make docker-repro ARGS="dvc ..."` or `-v $PWD:$PWD -w $PWD --user $(id -u):$(id -g)`'
        )
