"""The process that trains a trial: `python -m pipeline trial FOLDER`, which ends with the search if that is killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping

from pipeline.runtime import utilization
from pipeline.runtime.environment import Environment
from pipeline.runtime.interruption import EXIT_CODE_FILE
from pipeline.runtime.parent_watch import STARTED_BY_DVC, STARTED_BY_SEARCH
from pipeline.search.trial import LOG, TrialFolder

ERROR = "error: "
REFUSED = 2


class Child:
    """A running training of the trial in `trial`. `slot` is its place among the trials that train at the same time."""

    def __init__(self, trial: TrialFolder, slot: int, device: str | None, tags: Mapping[str, str]) -> None:
        """Start the process. `device` is the GPU that it may use, as in CUDA_VISIBLE_DEVICES; None for all. `tags` are those of its run."""
        self.trial, self.slot = trial, slot
        self.log = trial.folder / LOG
        with self.log.open("ab") as log:
            self._begin = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pipeline", "trial", str(trial.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=variables(trial, device, tags),
                start_new_session=True,  # Ctrl+C reaches the search only, which stops its children: a second signal would kill them
            )

    def stop(self) -> None:
        """Ask the training to save a checkpoint and to end. A second request would kill it."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def wait(self) -> None:
        self._process.wait()

    @property
    def error(self) -> str:
        """Return the first error that the process printed, "" if it printed none."""
        with self.log.open("rb") as file:
            file.seek(self._begin)
            lines = file.read().decode("utf-8", errors="replace").splitlines()
        return next((line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)), "")

    @property
    def parameter_error(self) -> str:
        """Return the error of the process if its parameters are the cause, such as a non-finite loss; otherwise return "". It begins with
        the key of a parameter.
        """
        place, _, message = self.error.partition(": ")
        return message if self.exit_code == REFUSED and place.startswith(f"{self.trial.paths.params}:") else ""


def variables(trial: TrialFolder, device: str | None, tags: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of the process. It keeps its checkpoints in its folder, and leaves MLflow to the search."""
    left_out = {"MLFLOW_RUN_ID", STARTED_BY_DVC, EXIT_CODE_FILE}
    return {
        **{name: value for name, value in os.environ.items() if name not in left_out},
        **({"CUDA_VISIBLE_DEVICES": device} if device else {}),
        "DVC_ROOT": str(trial.folder.resolve()),
        "MLFLOW_RUN_CONTEXT": json.dumps(dict(tags)),
        "PIPELINE_TRACKING": "true",  # the journal has the reports that the search reads
        "PIPELINE_TRACKING_MIRROR": "false",
        "PIPELINE_TRACKING_MODEL": "false",
        STARTED_BY_SEARCH: "true",
    }


def devices(environment: Environment, num_trials: int) -> list[str | None]:
    """Return the GPUs to give to the trials in turn, as in CUDA_VISIBLE_DEVICES; [None] if a trial may use all of them, or none.

    A trial gets one GPU if `num_trials`, the number of trials at a time, is above 1, and neither PIPELINE_DEVICE nor PIPELINE_PROCESSES
    says otherwise.
    """
    if num_trials == 1 or environment.processes != 1 or environment.device not in ("auto", "cuda"):
        return [None]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()] or [None]
    return [str(number) for number in range(len(utilization.gpus()))] or [None]
