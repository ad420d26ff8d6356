"""The folder of a trial, with its parameters and results, and the child process that runs a stage in it, which ends if the search is killed.

`trial FOLDER [STAGE]` is the command of this process.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.core import files
from pipeline.core.environment import Environment, Paths
from pipeline.core.interruption import EXIT_CODE_FILE, STARTED_BY_DVC, STARTED_BY_SEARCH
from pipeline.core.raw_dataset import TEST, VALID
from pipeline.core.refusal import Refusal, Unavailable
from pipeline.runs import events, journal, utilization
from pipeline.tools import stages
from pipeline.train.work_folder import Work

LOG, ENDED, REFUSED = "log.txt", "ended", "refused.json"
PREPARE, TRAIN, EVALUATE = "prepare", "train", "evaluate"


def run(folder: str, stage: str = TRAIN) -> int:
    """Run `stage` in `folder`, the folder of a trial, and return the exit code. Raises Refusal if it is not the folder of a trial.

    The file REFUSED then has why the stage was refused, for the search that started this process.
    """
    if not Paths(trial=Path(folder)).params.is_file():
        raise Refusal(f"{folder}: is not the folder of a trial: give one of .pipeline/search/NAME/trials/")
    if stage == PREPARE:
        (Path(folder) / "data").mkdir(exist_ok=True)  # else the stage would write into the checkout
    paths = Paths(trial=Path(folder))
    try:
        code = stages.run(stage, paths, ["trial", folder, stage])
    except Refusal as refused:
        first = refused.problems[0]
        is_parameter = bool(first.location) and first.file == str(paths.params) and not isinstance(refused, Unavailable)
        files.write_json(Path(folder) / REFUSED, [is_parameter, str(replace(first, file="", line=0) if is_parameter else first)])
        raise
    if code == 0 and not Environment.read().is_rank:
        files.write_text(Path(folder) / ENDED / stage, "")
    return code


class TrialFolder:
    """The folder of one trial. `stages` are the stages that the trial runs in it, in this order. With `prepare`, it has its own prepared data."""

    def __init__(self, folder: Path, stages: Sequence[str] = (TRAIN,)) -> None:
        self.folder, self.number, self.stages = folder, int(folder.name), stages
        self.step, self.values = 0, list[float]()
        self._offset = 0

    @property
    def paths(self) -> Paths:
        """Return the paths of the trial. Its prepared data is that of the checkout until it has a folder `data`."""
        return Paths(trial=self.folder)

    @property
    def left(self) -> list[str]:
        """Return the stages that have not ended yet."""
        return [stage for stage in self.stages if not (self.folder / ENDED / stage).exists()]

    def write(self, params: str, parent: Path | None) -> None:
        """Write `params.yaml`. The trial's journal is put beside `parent`, the journal of the search, or without one into the trial's folder.

        The journal of a resumed trial stays where it is.
        """
        files.write_text(self.paths.params, params)
        journals = journal.journals_folder(self.folder)
        if parent and not journals.exists():
            journals.parent.mkdir(parents=True, exist_ok=True)
            journals.unlink(missing_ok=True)  # a link to the place of a checkout that was moved
            journals.symlink_to(parent.parent.resolve())

    @property
    def journal(self) -> Path | None:
        """Return the folder of the trial's journal; None if there is none yet."""
        if not (named := self.paths.run) or not named.is_file():
            return None
        found = journal.journals_folder(self.folder) / named.read_text(encoding="utf-8").strip()
        return found if journal.has_begun(found) else None

    def validations(self, metric: str) -> Iterator[int]:
        """Read the validations that were not read before, in order. Yield the step of each, after `values` has the value of `metric`."""
        path = self.journal
        for event in events.read(path / events.EVENTS, self._offset) if path else ():
            self._offset = event.end
            if event.kind == "metrics" and metric in event.fields["values"]:
                self.step = event.fields["step"]
                self.values.append(float(event.fields["values"][metric]))
                yield self.step

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

    def failure(self, exit_code: int) -> str:
        """Return why the process of this trial was refused, if a parameter of the trial caused it, such as by a non-finite loss. Raises Refusal if
        the process ended for another reason.
        """
        path = self.folder / REFUSED
        is_parameter, reason = json.loads(path.read_bytes()) if path.exists() else (False, "no reason is known")
        if not is_parameter:
            remedy = "remove the cause, and repeat the command: it resumes this trial"
            raise Refusal(f"trial {self.number} ended with exit code {exit_code} ({reason}): {self.folder / LOG} has its output: {remedy}")
        return str(reason)

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
    if num_trials == 1 or environment.processes != 1 or environment.device not in ("auto", "cuda"):
        return [None] * num_trials
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(number) for number, _ in enumerate(utilization.gpus())] if visible is None else visible.split(",")
    found = [name.strip() for name in names if name.strip()]
    return [found[number % len(found)] if found else None for number in range(num_trials)]
