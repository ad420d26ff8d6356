"""A project of a test's own: the files a user has, in a temporary folder, with parameters that train in a second."""

import shutil
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from pipeline.params.document import Document
from tests.conftest import MLP, changed
from tests.imports import TOP

QUICK = {
    "model": MLP,
    "train.epochs": None,
    "train.steps": 24,
    "train.report_every_steps": 4,
    "train.validate_every_steps": 8,
}
COPIED = ("Makefile", "dvc.yaml", "requirements.lock", "data/README.md", "params.schema.json")


def make(folder: Path, changes: dict[str, Any] | None = None, *, copy: bool = False) -> Path:
    """`params.yaml` is the digits preset with QUICK and `changes`; the code is a link, or a copy that a test may edit."""
    for name in COPIED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(TOP / name, folder / name)
    if copy:
        shutil.copytree(TOP / "pipeline", folder / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    else:
        (folder / "pipeline").symlink_to(TOP / "pipeline")
    write_params(folder, changes)
    return folder


def write_params(folder: Path, changes: dict[str, Any] | None = None) -> None:
    data = changed(Document.read(TOP / "presets/digits.yaml").data, {**QUICK, **(changes or {})})
    with (folder / "params.yaml").open("w", encoding="utf-8") as file:
        YAML().dump(data, file)
