"""Digests of data, code and lock file in this checkout, computed like the input digests in a model file."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pipeline.data import prepared
from pipeline.data.prepared import Prepared
from pipeline.engine.model_file import Manifest
from pipeline.io import files
from pipeline.paths import Paths
from pipeline.refusal import Refusal
from pipeline.runtime import run_identity


class Digest(NamedTuple):
    """The digest of one input; `name` is its key among the inputs in the model file, `said` describes it in the output."""

    name: str
    said: str
    value: str


def of_checkout(paths: Paths, manifest: Manifest) -> list[Callable[[], Digest]]:
    """Return one function each for data, code and lock, which computes the digest. The code is that of the model in the manifest."""
    listed = run_identity.dependencies("train", manifest.params, paths.top)
    return [
        lambda: Digest("data", str(paths.prepared), of_data(paths.prepared)),
        lambda: Digest("code", "what dvc.yaml lists for train", or_missing(lambda: run_identity.code_digest(listed, paths.top))),
        lambda: Digest("lock", str(paths.lock), or_missing(lambda: files.digest(paths.lock))),
    ]


def of_data(folder: Path) -> str:
    """Return the digest of the prepared data, or a text that it is damaged. Raises Refusal where no data was prepared."""
    prepared.read_record(folder)
    try:
        return Prepared.open(folder).digest
    except Refusal as refusal:
        return f"damaged ({refusal})"


def or_missing(find: Callable[[], str]) -> str:
    """Return the digest, or a text that names the missing file."""
    try:
        return find()
    except FileNotFoundError as error:
        return f"no {error.filename}"
