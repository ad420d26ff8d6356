"""`make repro`: check, `dvc repro` and summary as one job, which holds the checkout."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from pipeline.commands import check, summary
from pipeline.refusal import Refusal
from pipeline.runtime import checkout_lock, interruption
from pipeline.runtime.environment import SUMMARY_FOLLOWS

TOLD = ".pipeline/interrupted"


def run() -> int:
    """Returns the exit code of DVC. Raises Refusal for bad input, and while another container works in the checkout."""
    with checkout_lock.held(Path()):
        check.run()
        if code := dvc_repro():
            return code
    summary.run()
    return 0


def dvc_repro() -> int:
    """Returns the exit code of `dvc repro`, or 128 and the signal's number where one ended it or its stage. Waits for its end after a signal, too."""
    sys.stdout.flush()
    told = Path(TOLD).absolute()
    told.unlink(missing_ok=True)  # a stage that outlived its DVC may have written it
    try:
        process = subprocess.Popen(["dvc", "repro"], env={**os.environ, SUMMARY_FOLLOWS: "true", interruption.TOLD_IN: str(told)})
    except FileNotFoundError:
        raise Refusal("dvc is not on the PATH: run `source .venv/bin/activate`") from None
    # a SIGINT from the keyboard reaches DVC by itself; a SIGTERM that `make` hands on reaches this process alone
    handlers = {signal.SIGINT: lambda *_: None, signal.SIGTERM: lambda *_: process.terminate()}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if code and told.exists():
        return int(told.read_text(encoding="utf-8"))
    return code if code >= 0 else 128 - code
