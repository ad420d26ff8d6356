"""The mirror process, `python -m pipeline sync --follow JOURNAL`. A stage starts it to deliver its journal, and waits for it at the end."""

import contextlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from pipeline.runtime.environment import Environment
from pipeline.tracking import events
from pipeline.tracking.address import Address
from pipeline.tracking.cursor import Cursor
from pipeline.tracking.store import unused_run_message

KILLED_WAIT_S = 5.0
CHECKOUT = Path(__file__).resolve().parents[2]
LOG = "mirror.log"
NICENESS = 19  # if all cores are busy, the mirror then takes 1/60 of a core from the training; at niceness 10 it would take 1/10


def say(environment: Environment, sentence: str) -> None:
    """Print a sentence to stderr as one line, with secrets replaced by `***`. If stderr is broken or closed, do nothing."""
    with contextlib.suppress(OSError, ValueError):  # a broken pipe, a closed stream
        print(Address.of(environment).redacted(f"tracking: {sentence}").replace("\n", " "), file=sys.stderr, flush=True)


def command(folder: Path) -> list[str]:
    """Return the command of the mirror process for the journal in `folder`."""
    return [sys.executable, "-m", "pipeline", "sync", "--follow", str(folder)]


def start(folder: Path, environment: Environment) -> subprocess.Popen[bytes] | None:
    """Start the mirror process, which sends the journal in `folder` to MLflow while the stage runs.

    If MLflow is not installed, print a message and return None.
    """
    if importlib.util.find_spec("mlflow") is None:
        say(
            environment,
            f"MLflow is not installed: run {folder.name} is only in its journal; install MLflow and run `python -m pipeline sync`",
        )
        return None
    variables = {
        **os.environ,
        "DVC_ROOT": str(environment.root.resolve()),  # the mirror runs in the checkout, not in the working directory of the stage
        "CUDA_VISIBLE_DEVICES": "",  # no CUDA context: it would take GPU memory from the training
        "OMP_NUM_THREADS": "1",
    }
    with (folder / LOG).open("ab") as log:
        process = subprocess.Popen(
            command(folder.resolve()), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=CHECKOUT, env=variables, start_new_session=True
        )
    os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
    return process


def wait(process: subprocess.Popen[bytes], folder: Path, environment: Environment, limit_s: float) -> None:
    """Wait up to `limit_s` seconds for the mirror process of the journal in `folder`, then kill it if it still runs.

    Print how many events of the journal are not in MLflow yet, if there are any. If the user set MLFLOW_RUN_ID but the journal was sent to
    another run, print the ids of both.
    """
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        process.kill()  # safe at any time: the next delivery resumes at the cursor in `delivered.json`
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process can hang in the kernel, such as on a dead network file system
            process.wait(KILLED_WAIT_S)
    cursor, named = Cursor.load(folder, Address.of(environment).key), environment.mlflow_run_id
    if named and cursor.run_id and cursor.run_id != named:
        say(environment, unused_run_message(named, folder.name, cursor.run_id))
    if not cursor.is_complete(folder):
        num_left = sum(1 for name, offset in cursor.offsets.items() for _ in events.read(folder / name, offset))
        most = "up to " if cursor.has_failed else ""  # events after the failed one may have been sent
        say(
            environment,
            f"{most}{num_left} events of run {folder.name} are not in MLflow yet: `python -m pipeline sync` delivers them (the reason is in {folder / LOG})",
        )
