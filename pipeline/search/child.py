"""The child process that trains a trial, `python -m pipeline trial FOLDER`. It also ends if the process of the search is killed."""

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
    """The child process that trains `trial`. `slot` is its index among the trials that train at the same time."""

    def __init__(self, trial: TrialFolder, slot: int, device: str | None, tags: Mapping[str, str]) -> None:
        """Start the process. `device` is the GPU that it may use, as in CUDA_VISIBLE_DEVICES; None for all. `tags` are the tags of its run."""
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
                start_new_session=True,  # Ctrl+C must reach only the search, which stops its children: a second signal would kill them
            )

    def stop(self) -> None:
        """Send SIGTERM: the training saves a checkpoint and ends. Call this once only, because a second signal kills the training."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def wait(self) -> None:
        self._process.wait()

    @property
    def error(self) -> str:
        """Return the first error message that the process printed; "" if it printed none."""
        with self.log.open("rb") as file:
            file.seek(self._begin)
            lines = file.read().decode("utf-8", errors="replace").splitlines()
        return next((line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)), "")

    @property
    def parameter_error(self) -> str:
        """Return the error message if the parameters of the trial caused it, such as a non-finite loss; otherwise return "".

        The message begins with the key of a parameter.
        """
        place, _, message = self.error.partition(": ")
        return message if self.exit_code == REFUSED and place.startswith(f"{self.trial.paths.params}:") else ""


def variables(trial: TrialFolder, device: str | None, tags: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of the process. It keeps its checkpoints in the trial's folder, and sends nothing to MLflow."""
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
    """Return the GPUs to assign to the trials in turn, as in CUDA_VISIBLE_DEVICES; [None] if GPUs are not assigned.

    Each trial gets one GPU if `num_trials`, the number of trials that train at the same time, is above 1, PIPELINE_PROCESSES is 1, and
    PIPELINE_DEVICE is `auto` or `cuda`.
    """
    if num_trials == 1 or environment.processes != 1 or environment.device not in ("auto", "cuda"):
        return [None]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()] or [None]
    return [str(number) for number in range(len(utilization.gpus()))] or [None]
