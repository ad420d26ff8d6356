"""A project with prepared data and a search file, and a fake child that trains in an instant."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ruamel.yaml import YAML

from pipeline.core import files
from pipeline.core.yaml_document import Document
from pipeline.runs.journal import Journal, RunInfo
from pipeline.tools import stages
from pipeline.tools.search.trial import TrialFolder, run
from tests import project

SEARCH: dict[str, Any] = {
    "name": "tiny",
    "trials": 8,
    "seed": 3,
    "metric": "valid/loss",
    "direction": None,
    "pruner": "median",
    "processes": 1,
    "space": {
        "optimizer.learning_rate": {"type": "float", "low": 1e-4, "high": 1e-1, "log": True},
        "train.clip_norm": {"type": "categorical", "choices": [0.5, 1.0, None]},
    },
    "method": "tpe",
}
SEEDS: dict[str, Any] = {"method": "grid", "pruner": "none", "space": {"seed": {"type": "int", "low": 1, "high": 5}}}
FOLDS = {**SEEDS, "space": {"source.folds": {"type": "categorical", "choices": [3]}, "source.fold": {"type": "int", "low": 0, "high": 2}}}
FILE = Path("search.yaml")


def prepare(folder: Path) -> Path:
    """Make a project in `folder`, the working directory, with the prepared digits."""
    project.make(folder)
    stages.run("prepare")
    return folder


def write(changes: Mapping[str, Any] | None = None, *, without: str = "") -> Path:
    with FILE.open("w", encoding="utf-8") as file:
        YAML().dump({key: value for key, value in {**SEARCH, **(changes or {})}.items() if key != without}, file)
    return FILE


class FakeChild:
    """Stands for the process of a trial, and trains in an instant: the loss of a validation depends on the learning rate, the seed and the
    number of the validation only.
    """

    returncode = 0
    starts: ClassVar[list[int]] = []

    def __init__(self, trial: TrialFolder, _device: str | None, tags: Mapping[str, str]) -> None:
        stage = trial.left[0]
        if stage == "prepare":
            assert run(str(trial.folder), stage) == 0
            return
        if stage == "evaluate":
            valid = json.loads((trial.paths.metrics / "train.json").read_bytes())["valid"]
            files.write_json(trial.paths.metrics / "evaluate.json", {"test": {"loss": valid["loss"] + 1, "samples": 9}})
            files.write_text(trial.folder / "ended/evaluate", "")
            return
        self.starts.append(trial.number)
        params = Document.read(trial.paths.params).data
        rate = params["optimizer"]["learning_rate"]
        losses = [abs(rate - number / 100) + 1 / number + (params["seed"] - 1) ** 2 / 100 for number in (1, 2, 3)]
        journal = trial.journal
        if journal is None:
            written = Journal.create(trial.folder, stage="train", info=RunInfo(tags=tags))
            files.write_text(trial.folder / "run", written.folder.name)
        else:
            written = Journal.reopen(journal, stage="train", info=RunInfo())
        for step, loss in zip((8, 16, 24), losses, strict=True):
            written.metrics(step, {"valid/loss": loss})
        files.write_text(trial.paths.model, str(rate))
        files.write_json(trial.paths.metrics / "train.json", {"exported_step": 24, "valid": {"loss": losses[-1]}})
        written.end("FINISHED")
        written.close()
        files.write_text(trial.folder / "ended/train", "")

    def poll(self) -> int:
        return self.returncode

    def terminate(self) -> None:
        """Do nothing: it has ended."""

    def wait(self) -> int:
        return self.returncode
