"""Digests of what the default trains to, by the fingerprint of the machine; `python -m tests.laws.golden` records them on purpose.

Only what survives an edit of unrelated code is digested: of the model file the weights, not the metadata, which hold the digest of the code, and the
scores without the name of the model file that they are of.
"""

import json
import shutil
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.__main__ import main
from pipeline.engine import model_file
from pipeline.io import files, tensor_file
from pipeline.reports import recorded as recorded_scores
from pipeline.runtime import cgroup
from tests import project
from tests.imports import TOP

RECORDED = TOP / "tests/laws/golden.json"
COMMAND = "make golden"
CORES = cgroup.usable_cpus()
STAGES = ("prepare", "train", "evaluate")
SCORES = "metrics/evaluate.json"
WRITTEN = ("metrics/train.json", "plots/train/history.csv", "plots/evaluate/confusion.csv", "plots/evaluate/reliability.csv")
FIGURES = ("plots/evaluate/history.png", "plots/evaluate/confusion.png", "plots/evaluate/reliability.png", "plots/evaluate/mistakes.png")
DRAWING = ("matplotlib", "pillow")


def train_the_default(folder: Path) -> Path:
    """The shipped default in a project of its own, run in this process by its three stages."""
    project.make(folder)
    shutil.copy(TOP / "presets/digits.yaml", folder / "params.yaml")
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIPELINE_TRACKING", "false")
        patch.setenv("PIPELINE_THREADS", str(CORES))
        patch.chdir(folder)
        try:
            assert all(main([stage]) == 0 for stage in ("check", *STAGES))
        finally:
            torch.set_num_threads(before)
    return folder


def data(folder: Path) -> dict[str, str]:
    """The arrays of the prepared data, which no machine decides."""
    return {path.name: files.digest(path) for path in files.members(folder / "data/prepared") if path.suffix == ".npy"}


def fingerprint(folder: Path) -> dict[str, Any]:
    """That of the model file, and what draws the figures."""
    _, manifest = model_file.load(folder / "models/model.safetensors")
    return manifest.fingerprint | {"drawing": {library: metadata.version(library) for library in DRAWING}}


def results(folder: Path) -> dict[str, str]:
    weights, _ = tensor_file.load(folder / "models/model.safetensors")
    return {"weights": tensor_file.digest(weights, {}), SCORES: unlabelled(folder / SCORES)} | {
        name: files.digest(folder / name) for name in (*WRITTEN, *FIGURES)
    }


def unlabelled(path: Path) -> str:
    scores, _ = recorded_scores.read(path)
    with tempfile.TemporaryDirectory() as folder:
        files.write_json(Path(folder) / path.name, scores)
        return files.digest(Path(folder) / path.name)


def recorded() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return value


def renew(folder: Path) -> None:
    """Put this machine's digests in the place of its earlier ones; those of other machines are kept while the data is the same."""
    known, here = recorded(), fingerprint(folder)
    others = [entry for entry in known["results"] if entry["fingerprint"] != here] if known["data"] == data(folder) else []
    entries = [*others, {"fingerprint": here, "digests": results(folder)}]
    files.write_json(RECORDED, {"data": data(folder), "results": sorted(entries, key=files.canonical)})


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        renew(train_the_default(Path(name)))
    print(f"golden: {RECORDED.relative_to(TOP)} has this machine's digests: look at `git diff` before you commit it")
