"""The folder of a trial, with its parameters and results, and the child process that runs a stage in it, which ends if the search is killed.

`trial FOLDER [STAGE]` is the command of this process.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from pipeline.core import files
from pipeline.core.environment import Environment, Paths
from pipeline.core.interruption import EXIT_CODE_FILE, STARTED_BY_DVC, STARTED_BY_SEARCH
from pipeline.core.raw_dataset import TEST, VALID
from pipeline.core.refusal import Problem, Refusal, Unavailable
from pipeline.runs import events, journal, utilization
from pipeline.tools import stages
from pipeline.train.work_folder import Work

TRIAL_TAG = "pipeline.trial"
RUN, LOG, ENDED, REFUSED = "run", "log.txt", "ended", "refused.json"
PREPARE, TRAIN, EVALUATE = "prepare", "train", "evaluate"


def run(folder: str, stage: str = TRAIN) -> int:
    """Run `stage` in `folder`, the folder of a trial, and return the exit code. Raises Refusal if it is not the folder of a trial.

    The file REFUSED then has why the stage was refused, for the search that started this process.
    """
    if not Paths(trial=Path(folder)).params.is_file():
        raise Refusal(f"{folder}: is not the folder of a trial: give one of .pipeline/search/NAME/trials/")
    if stage == PREPARE:
        (Path(folder) / "data").mkdir(exist_ok=True)  # else the stage would write into the checkout
    try:
        code = stages.run(stage, Paths(trial=Path(folder)), ["trial", folder, stage])
    except Refusal as refused:
        if not isinstance(refused, Unavailable):
            files.write_json(Path(folder) / REFUSED, [asdict(problem) for problem in refused.problems])
        raise
    if code == 0 and not Environment.read().is_rank:
        files.write_text(Path(folder) / ENDED / stage, "")
    return code


class TrialFolder:
    """The folder of one trial. `search` is the unique id of the search, by which the trial's run is found among all journals.

    `stages` are the stages that the trial runs in its folder, in this order. With `prepare`, it has its own prepared data.
    """

    def __init__(self, folder: Path, search: str, stages: Sequence[str] = (TRAIN,)) -> None:
        self.folder, self.number, self.stages = folder, int(folder.name), stages
        self._search = search
        self._others: set[str] = set()
        self._offset = 0
        self._values: list[tuple[int, dict[str, float]]] = []

    @property
    def paths(self) -> Paths:
        """Return the paths of the trial. Its prepared data is that of the checkout until it has a folder `data`."""
        return Paths(trial=self.folder)

    @property
    def left(self) -> list[str]:
        """Return the stages that have not ended yet."""
        return [stage for stage in self.stages if not (self.folder / ENDED / stage).exists()]

    def write(self, params: str, journals: Path | None) -> None:
        """Write `params.yaml`. `journals` is the folder for the trial's journal; None for a folder within the trial's folder.

        The journal of a resumed trial stays where it is.
        """
        files.write_text(self.paths.params, params)
        own = journal.journals_folder(self.folder)
        if journals and not own.is_symlink() and not own.exists():
            for each in (own.parent, journals):
                each.mkdir(parents=True, exist_ok=True)
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
        path = self.journal
        for event in events.read(path / events.EVENTS, self._offset) if path else ():
            self._offset = event.end
            if event.kind == "metrics":
                self._values.append((event.fields["step"], {name: float(value) for name, value in event.fields["values"].items()}))
        return [(step, values[metric]) for step, values in self._values if metric in values]

    def exported(self) -> tuple[dict[str, float], int]:
        """Return the metrics of the exported weights on the validation split, and the step after which the weights were taken."""
        found = json.loads((self.paths.metrics / "train.json").read_bytes())
        return {f"{VALID}/{name}": value for name, value in found.get(VALID, {}).items() if value is not None}, found["exported_step"]

    def scores(self) -> dict[str, float]:
        """Return the metrics of the exported weights on the validation split, and those of the same names on the test split."""
        valid, _ = self.exported()
        found = json.loads((self.paths.metrics / "evaluate.json").read_bytes())[TEST]
        test = {f"{TEST}/{name}": found.get(name) for name in (each.partition("/")[2] for each in valid)}
        return valid | {name: float(value) for name, value in test.items() if value is not None}

    @property
    def problem(self) -> Problem | None:
        """Return the first reason why the process of this trial was refused; None if it was not. It has a location if a parameter caused it, such
        as a non-finite loss.
        """
        path = self.folder / REFUSED
        if not path.exists():
            return None
        first = Problem(**json.loads(path.read_bytes())[0])
        is_parameter = first.file == str(self.paths.params)
        return replace(first, file="", line=0) if is_parameter else Problem(str(first))

    def remove_checkpoints(self) -> None:
        """Remove the checkpoints and other files that only an unfinished trial needs. Dumps of non-finite batches stay."""
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        for record in self.folder.glob(".pipeline/work/*/inputs.json"):
            Work(record.parent).clear()


def start(trial: TrialFolder, device: str | None, tags: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Start the process of the next stage of `trial`. It keeps its checkpoints in the trial's folder, and sends nothing to MLflow.

    `device` is the GPU that it may use, as in CUDA_VISIBLE_DEVICES; None for all. `tags` are the tags of its run. After SIGTERM, the training
    saves a checkpoint and ends; a second one kills it.
    """
    (trial.folder / REFUSED).unlink(missing_ok=True)
    variables = {
        **{name: value for name, value in os.environ.items() if name not in (STARTED_BY_DVC, EXIT_CODE_FILE)},
        **({"CUDA_VISIBLE_DEVICES": device} if device else {}),
        "DVC_ROOT": str(trial.folder.resolve()),
        "MLFLOW_RUN_CONTEXT": json.dumps(dict(tags)),
        "PIPELINE_TRACKING": "true",  # the journal has the reports that the search reads
        "PIPELINE_TRACKING_MIRROR": "false",
        **({} if EVALUATE in trial.stages else {"PIPELINE_TRACKING_MODEL": "false"}),  # by its model, an evaluation finds the run
        STARTED_BY_SEARCH: "true",
    }
    with (trial.folder / LOG).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline", "trial", str(trial.folder), trial.left[0]],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=variables,
            start_new_session=True,  # Ctrl+C must reach only the search, which stops its trials
        )


def devices(environment: Environment, num_trials: int) -> list[str | None]:
    """Return the GPU of each of `num_trials` trials that train at the same time, as in CUDA_VISIBLE_DEVICES; None if GPUs are not assigned.

    They get one in turn if `num_trials` is above 1, PIPELINE_PROCESSES is 1, and PIPELINE_DEVICE is `auto` or `cuda`.
    """
    found = list[str]()
    if num_trials > 1 and environment.processes == 1 and environment.device in ("auto", "cuda"):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = map(str, range(len(utilization.gpus()))) if visible is None else visible.split(",")
        found = [name.strip() for name in names if name.strip()]
    return [found[number % len(found)] if found else None for number in range(num_trials)]
