"""`make repro`: run check, `dvc repro` and summary. Until `dvc repro` has ended, other containers cannot use the checkout."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.commands import check, summary
from pipeline.commands import set as set_parameters
from pipeline.refusal import Refusal
from pipeline.runtime import checkout_lock, interruption
from pipeline.runtime.environment import SUMMARY_FOLLOWS, Environment
from pipeline.tracking import mirror_process

EXIT_CODE_PATH = ".pipeline/interrupted"


def run(assignments: Sequence[str] = ()) -> int:
    """Run the command `check`, then `dvc repro` and, if DVC succeeds, the command `summary`. Return the exit code of DVC.

    If there are `assignments`, each `KEY=VALUE`, the command `set` first writes them into params.yaml, where they stay.

    Raises Refusal for bad input, or if another container is using the checkout.
    """
    with checkout_lock.held(Path()):
        if assignments:
            set_parameters.run(assignments)
        check.run()
        if code := dvc_repro():
            if code not in interruption.EXIT_CODES:
                mirror_process.wait_for_all(Environment.read())  # `train` has left this to the summary
            return code
    summary.run()
    return 0


def dvc_repro() -> int:
    """Run `dvc repro` and return its exit code, or 128 plus the number of the signal that ended DVC or a stage.

    Wait until DVC has ended, even after a signal.
    """
    sys.stdout.flush()
    exit_code_file = Path(EXIT_CODE_PATH).absolute()
    exit_code_file.unlink(missing_ok=True)  # left by a stage of an earlier `dvc repro` that was killed
    try:
        process = subprocess.Popen(
            ["dvc", "repro"], env={**os.environ, SUMMARY_FOLLOWS: "true", interruption.EXIT_CODE_FILE: str(exit_code_file)}
        )
    except FileNotFoundError:
        raise Refusal("dvc is not on the PATH: run `source .venv/bin/activate`") from None
    # The terminal sends SIGINT to DVC too. A SIGTERM that `make` forwards reaches only this process, so pass it on to DVC.
    handlers = {signal.SIGINT: lambda *_: None, signal.SIGTERM: lambda *_: process.terminate()}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        code = process.wait()
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
    if code and exit_code_file.exists():
        return int(exit_code_file.read_text(encoding="utf-8"))
    return code if code >= 0 else 128 - code
