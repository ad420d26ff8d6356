"""Refuse DVC commands that need Git in a copy of a checkout or of the image's code, which has no Git repository."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from pipeline.refusal import Refusal

NEED_GIT, COMPARE = {"exp", "experiments", "queue", "diff"}, {"metrics", "params", "plots"}


def refuse(words: Sequence[str], copy_of: Path | None) -> None:
    """Raise Refusal for `dvc exp ...`, `dvc queue ...` and `dvc ... diff` in a copy.

    DVC itself would advise to turn `core.no_scm` off, which leads to another error.
    """
    # options, and the folder after `--cd`, are not verbs
    verbs = [word for before, word in pairwise(words) if before != "--cd" and not word.startswith("-")]
    compares = verbs[1:2] == ["diff"] and verbs[0] in COMPARE
    if copy_of and list(words[:1]) == ["dvc"] and (compares or NEED_GIT & set(verbs[:1])):
        raise Refusal(
            f"`dvc {' '.join(verbs[:2])}` needs Git, and this runs in a copy of {copy_of}, which has none: "
            'run it in a checkout, with `make docker-repro ARGS="dvc ..."` or `-v $PWD:$PWD -w $PWD --user $(id -u):$(id -g)`'
        )
