"""Digests of the results of the default by the machine's fingerprint; `python -m tests.laws.golden` records them.

The digests are independent of edits of unrelated code: they cover the weights of the model file without its metadata, which include the digest of
the code, and the scores without the name of their model file.
"""

import json
import shutil
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

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
    """Run the three stages of the shipped default in this process, in a new project."""
    project.make(folder)
    shutil.copy(TOP / "presets/digits.yaml", folder / "params.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIPELINE_TRACKING", "false")
        patch.setenv("PIPELINE_THREADS", str(CORES))
        patch.chdir(folder)
        assert all(main([stage]) == 0 for stage in ("check", *STAGES))
    return folder


def data(folder: Path) -> dict[str, str]:
    """Return the digests of the prepared data, which are equal on every machine."""
    return {path.name: files.digest(path) for path in files.members(folder / "data/prepared") if path.suffix == ".npy"}


def fingerprint(folder: Path) -> dict[str, Any]:
    """Return the fingerprint in the model file and the versions of the libraries that plot the figures."""
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
    """Replace this machine's digests. Keep those of other machines unless the prepared data changed."""
    known, machine = recorded(), fingerprint(folder)
    others = [entry for entry in known["results"] if entry["fingerprint"] != machine] if known["data"] == data(folder) else []
    entries = [*others, {"fingerprint": machine, "digests": results(folder)}]
    files.write_json(RECORDED, {"data": data(folder), "results": sorted(entries, key=files.canonical)})


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        renew(train_the_default(Path(name)))
    print(f"golden: {RECORDED.relative_to(TOP)} has this machine's digests: look at `git diff` before you commit it")
