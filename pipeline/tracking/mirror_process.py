"""Starts the mirror process of a stage, and waits for it at the end of the stage, with a time limit."""

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

from pipeline.runtime.environment import Environment
from pipeline.tracking import events
from pipeline.tracking.address import Address
from pipeline.tracking.cursor import Cursor
from pipeline.tracking.store import unused_run_message

CHECKOUT = Path(__file__).resolve().parents[2]
LOG = "mirror.log"
STALL_S = 60.0
NICENESS = 19  # on a busy machine the mirror takes 1/60 of a core from the training; at niceness 10 it takes 1/10


def say(environment: Environment, sentence: str) -> None:
    """Print one redacted line to stderr."""
    print(Address.of(environment).redacted(f"tracking: {sentence}").replace("\n", " "), file=sys.stderr, flush=True)


def command(folder: Path) -> list[str]:
    return [sys.executable, "-m", "pipeline", "mirror", str(folder)]


class MirrorProcess:
    """A running mirror process and its journal."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, environment: Environment) -> None:
        self._process = process
        self._folder = folder
        self._environment = environment
        self._store = Address.of(environment).key

    def wait(self, limit_s: float) -> None:
        """Wait up to `limit_s` seconds while the delivery makes progress, then kill the process and print how many events are left."""
        try:
            self._wait_while_moving(limit_s)
        finally:
            if self._process.poll() is None:
                self._process.kill()  # safe at any time: the next delivery resumes at the cursor in `delivered.json`
                self._process.wait()
        cursor, named = Cursor.load(self._folder, self._store), self._environment.mlflow_run_id
        if named and cursor.run_id and cursor.run_id != named:
            say(self._environment, unused_run_message(named, self._folder.name, cursor.run_id))
        if not cursor.is_complete(self._folder):
            num_left = sum(1 for _ in events.read(self._folder / events.EVENTS, cursor.first_left))
            say(
                self._environment,
                f"{num_left} events of run {self._folder.name} are not in MLflow yet: `python -m pipeline sync` delivers them ({LOG} beside the journal says why)",
            )

    def _wait_while_moving(self, limit_s: float) -> None:
        """Wait until the process exits, `limit_s` seconds pass, or the cursor stays the same for `STALL_S` seconds."""
        begin = moved = time.monotonic()
        last: Cursor | None = None
        while self._process.poll() is None:
            cursor, now = Cursor.load(self._folder, self._store), time.monotonic()
            if cursor != last:
                last, moved = cursor, now
            if now - begin >= limit_s or now - moved >= STALL_S:
                return
            time.sleep(0.05)


def start(folder: Path, environment: Environment) -> MirrorProcess | None:
    """Start the mirror process of a journal. Print a message and return None where MLflow is not installed."""
    if importlib.util.find_spec("mlflow") is None:
        say(environment, f"MLflow is not installed: run {folder.name} stays in the journal until `python -m pipeline sync` can deliver it")
        return None
    folder = folder.resolve()
    variables = {
        **os.environ,
        "DVC_ROOT": str(environment.root.resolve()),  # the mirror runs in the checkout, not in the working directory of the stage
        "CUDA_VISIBLE_DEVICES": "",  # no CUDA context: it would take GPU memory from the training
        "OMP_NUM_THREADS": "1",
    }
    with (folder / LOG).open("ab") as log:
        process = subprocess.Popen(
            command(folder), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=CHECKOUT, env=variables, start_new_session=True
        )
    os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
    return MirrorProcess(process, folder, environment)
