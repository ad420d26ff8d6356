"""The folder of a trial, with its parameters and results. `python -m pipeline trial FOLDER` trains in it on the data of the checkout."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path

from pipeline.io import files
from pipeline.paths import Paths
from pipeline.runtime.training_folder import Work
from pipeline.tracking import events, journal

TRIAL_TAG = "pipeline.trial"
RUN, LOG = "run", "log.txt"


@dataclass(frozen=True)
class TrialPaths(Paths):
    """The paths of a training whose parameters and results are in `folder`. Data, code and lock file are those of the checkout."""

    folder: Path = Path()

    @property
    def params(self) -> Path:
        return self.folder / "params.yaml"

    @property
    def model(self) -> Path:
        return self.folder / "models/model.safetensors"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics"

    @property
    def plots(self) -> Path:
        return self.folder / "plots"

    @property
    def dvc_lock(self) -> Path:
        return self.folder / "dvc.lock"  # never exists: the dvc.lock of the checkout describes another training


class TrialFolder:
    """The folder of one trial. `search` is the unique id of the search, by which the trial's run is found among all journals."""

    def __init__(self, folder: Path, search: str) -> None:
        self.folder, self.paths, self.number = folder, TrialPaths(folder=folder), int(folder.name)
        self._search = search
        self._others: set[str] = set()
        self._offset = 0
        self._values: list[tuple[int, dict[str, float]]] = []
        self._status = ""

    def write(self, params: str, journals: Path | None) -> None:
        """Write `params.yaml`. `journals` is the folder for the trial's journal; None for a folder within the trial's folder.

        The journal of a resumed trial stays where it is.
        """
        files.write_text(self.paths.params, params)
        own = journal.journals_folder(self.folder)
        if not own.is_symlink() and not own.exists():
            own.parent.mkdir(parents=True, exist_ok=True)
            if journals:
                journals.mkdir(parents=True, exist_ok=True)
                own.symlink_to(journals.resolve())

    @property
    def journal(self) -> Path | None:
        """Return the folder of the trial's journal, or None if there is none yet. Once it is found, its name is kept in the file `run`."""
        own, known = journal.journals_folder(self.folder), self.folder / RUN
        if known.is_file():
            return own / known.read_text(encoding="utf-8").strip()
        for path in sorted(own.glob("*"), reverse=True):
            if path.name not in self._others and journal.has_begun(path):
                tags = next(events.read(path / events.EVENTS)).fields.get("tags", {})
                if (tags.get(journal.SEARCH_TAG), tags.get(TRIAL_TAG)) == (self._search, str(self.number)):
                    files.write_text(known, path.name + "\n")
                    return path
                self._others.add(path.name)
        return None

    def reports(self, metric: str) -> list[tuple[int, float]]:
        """Return step and value of `metric` for each validation so far, in order."""
        self._read()
        return [(step, values[metric]) for step, values in self._values if metric in values]

    def _read(self) -> None:
        """Read the new events of the journal."""
        path = self.journal
        for event in events.read(path / events.EVENTS, self._offset) if path else ():
            self._offset = event.end
            if event.kind == "metrics":
                self._values.append((event.fields["step"], {name: float(value) for name, value in event.fields["values"].items()}))
            elif event.kind in ("start", "reopen", "end"):
                self._status = event.fields.get("status", "")

    @property
    def is_complete(self) -> bool:
        """Return True if the training has ended and written all its files. It ends its run after it has written them."""
        self._read()
        return self._status == "FINISHED" and (self.paths.metrics / "train.json").is_file()

    def result(self, metric: str) -> tuple[float, int]:
        """Return the value of `metric` for the exported weights, and the step after which they were taken."""
        step = int(json.loads((self.paths.metrics / "train.json").read_bytes())["exported_step"])
        with self.paths.history.open(encoding="utf-8", newline="") as file:
            row = next(row for row in csv.DictReader(file) if int(row["step"]) == step)
        return float(row[metric]), step

    def remove_checkpoints(self) -> None:
        """Remove the checkpoints and other files that only an unfinished training needs. Dumps of non-finite batches stay."""
        for record in self.folder.glob(".pipeline/work/*/inputs.json"):
            Work(record.parent).clear()

    def remove_model(self) -> None:
        self.paths.model.unlink(missing_ok=True)
