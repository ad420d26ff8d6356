"""A user's project in a temporary folder, with parameters that train in a second."""

import shutil
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.conftest import MLP, preset
from tests.imports import TOP

QUICK = {
    "model": MLP,
    "train.epochs": None,
    "train.steps": 24,
    "train.report_every_steps": 4,
    "train.validate_every_steps": 8,
}
COPIED = ("Makefile", "dvc.yaml", "requirements.lock", "data/README.md", "data/weights/None", "params.schema.json")


def make(folder: Path, changes: dict[str, Any] | None = None, *, copy: bool = False) -> Path:
    """Write `params.yaml`, which is the digits preset with QUICK and `changes`, and link the code, or copy it for a test that edits it."""
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
    with (folder / "params.yaml").open("w", encoding="utf-8") as file:
        YAML().dump(preset({**QUICK, **(changes or {})}), file)
