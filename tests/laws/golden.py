"""Digests of the results of some trainings by the machine's fingerprint; `python -m tests.laws.golden` records them.

The trainings are the shipped default and two short ones of language models, a transformer and an LSTM, on `package_source`.
The digests are independent of edits of unrelated code: they cover the weights of the model file without its metadata, which include the digest of
the code, and the scores without the name of their model file.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from pipeline.core import files, limits
from pipeline.core.refusal import Refusal
from pipeline.evaluate.reports import recorded as recorded_scores
from pipeline.inference import model_file, tensor_file
from pipeline.inference.machine import is_known
from tests import project
from tests.imports import TOP

RECORDED = {
    name: TOP / f"tests/laws/{file}.json"
    for name, file in {"digits": "golden", "code": "golden-code", "code-lstm": "golden-code-lstm"}.items()
}
"""The file of each training, by the names in `project.SETTINGS`. The default is trained in full, on all cores, and the others on one core."""
COMMAND = "make golden"
CORES = limits.usable_cpus()
SCORES = "metrics/evaluate.json"
DRAWING = ("matplotlib", "pillow")


def train(folder: Path, name: str) -> Path:
    """Run the three stages of a training in this process, in a new project."""
    project.make(folder, setting=name)
    if name == "digits":
        shutil.copy(TOP / "presets/digits.yaml", folder / "params.yaml")
    threads = str(CORES) if name == "digits" else "1"
    return project.run(folder, "check", "prepare", "train", "evaluate", plotted=True, PIPELINE_THREADS=threads)


def data(folder: Path) -> dict[str, str]:
    """Return the digests of the prepared data, which are equal on every machine."""
    return {path.name: files.digest(path) for path in files.members(folder / "data/prepared") if path.suffix == ".npy"}


def fingerprint(folder: Path) -> dict[str, Any]:
    """Return the fingerprint in the model file and the versions of the libraries that plot the figures."""
    _, manifest = model_file.load(folder / "models/model.safetensors")
    return manifest.fingerprint | {"drawing": {library: metadata.version(library) for library in DRAWING}}


def results(folder: Path) -> dict[str, str]:
    """Return the digests of the weights, the metrics, and all tables and figures."""
    weights, _ = tensor_file.load(folder / "models/model.safetensors")
    written = ("metrics/train.json", *(path.relative_to(folder).as_posix() for path in files.members(folder / "plots")))
    return {"weights": tensor_file.digest(weights, {}), SCORES: unlabelled(folder / SCORES)} | {
        name: files.digest(folder / name) for name in written
    }


def unlabelled(path: Path) -> str:
    scores, _ = recorded_scores.read(path)
    with tempfile.TemporaryDirectory() as folder:
        files.write_json(Path(folder) / path.name, scores)
        return files.digest(Path(folder) / path.name)


def recorded(name: str) -> dict[str, Any]:
    """Return what is recorded of a training: the digests of its data, and its results on each machine."""
    value: dict[str, Any] = (
        json.loads(RECORDED[name].read_text(encoding="utf-8")) if RECORDED[name].exists() else {"data": {}, "results": []}
    )
    return value


def listed(name: str, machine: dict[str, Any]) -> dict[str, str] | None:
    """Return the recorded digests of the machine with this fingerprint. Return None if it is not listed, or if its CPU is unknown."""
    entries = recorded(name)["results"] if is_known(machine) else []
    return next((entry["digests"] for entry in entries if entry["fingerprint"] == machine), None)


def renew(folder: Path, name: str) -> None:
    """Replace this machine's digests. Keep those of other machines unless the prepared data changed."""
    known, machine = recorded(name), fingerprint(folder)
    if not is_known(machine):
        raise Refusal(f"{machine}: does not name the machine's CPU: record digests on one that does")
    others = [entry for entry in known["results"] if entry["fingerprint"] != machine] if known["data"] == data(folder) else []
    entries = [*others, {"fingerprint": machine, "digests": results(folder)}]
    files.write_json(RECORDED[name], {"data": data(folder), "results": sorted(entries, key=files.canonical)})


def record(names: Sequence[str]) -> None:
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            renew(train(Path(folder), name), name)
        print(f"golden: {RECORDED[name].relative_to(TOP)} has this machine's digests: look at `git diff` before you commit it")


if __name__ == "__main__":
    record(sys.argv[1:] or list(RECORDED))
