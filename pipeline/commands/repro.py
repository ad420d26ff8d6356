"""`make repro`: run check, `dvc repro` and summary as one job that locks the checkout."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from pipeline.commands import check, summary
from pipeline.refusal import Refusal
from pipeline.runtime import checkout_lock, interruption
from pipeline.runtime.environment import SUMMARY_FOLLOWS

EXIT_CODE_PATH = ".pipeline/interrupted"


def run() -> int:
    """Run the job and return the exit code of DVC. Raises Refusal for bad input, and while another container uses the checkout."""
    with checkout_lock.held(Path()):
        check.run()
        if code := dvc_repro():
            return code
    summary.run()
    return 0


def dvc_repro() -> int:
    """Run `dvc repro`; return its exit code, or 128 plus the signal's number if a signal ended it or its stage.

    After a signal this process also waits until DVC has ended.
    """
    sys.stdout.flush()
    exit_code_file = Path(EXIT_CODE_PATH).absolute()
    exit_code_file.unlink(missing_ok=True)  # a stage that outlived its DVC may have written it
    try:
        process = subprocess.Popen(
            ["dvc", "repro"], env={**os.environ, SUMMARY_FOLLOWS: "true", interruption.EXIT_CODE_FILE: str(exit_code_file)}
        )
    except FileNotFoundError:
        raise Refusal("dvc is not on the PATH: run `source .venv/bin/activate`") from None
    # the terminal sends SIGINT to DVC too; a SIGTERM that `make` forwards reaches this process only, so pass it on
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
