"""What lies in this checkout and on this machine, digested as the model file digests what it was made from."""

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
    """`name` is that of the model file's inputs."""

    name: str
    said: str
    value: str


def of_checkout(paths: Paths, manifest: Manifest) -> list[Callable[[], Digest]]:
    """Data, code and lock, each digested when it is asked for. The code is that of the file's own model."""
    listed = run_identity.dependencies("train", manifest.params, paths.top)
    return [
        lambda: Digest("data", str(paths.prepared), of_data(paths.prepared)),
        lambda: Digest("code", "what dvc.yaml lists for train", or_missing(lambda: run_identity.code_digest(listed, paths.top))),
        lambda: Digest("lock", str(paths.lock), or_missing(lambda: files.digest(paths.lock))),
    ]


def of_data(folder: Path) -> str:
    """Data that was damaged since it was prepared differs. Raises Refusal where none was prepared."""
    prepared.read_record(folder)
    try:
        return Prepared.open(folder).digest
    except Refusal as refusal:
        return f"damaged ({refusal})"


def or_missing(find: Callable[[], str]) -> str:
    try:
        return find()
    except FileNotFoundError as error:
        return f"no {error.filename}"
