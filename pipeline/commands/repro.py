"""`make repro`: run check, `dvc repro` and summary. Until `dvc repro` has ended, other containers cannot use the checkout."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.commands import check, summary
from pipeline.commands import set as set_parameters
from pipeline.runtime import checkout_lock, interruption, supervision
from pipeline.runtime.environment import SUMMARY_FOLLOWS, Environment
from pipeline.tracking import mirror_process


def run(assignments: Sequence[str] = ()) -> int:
    """Run the command `check`, then `dvc repro` and, if DVC succeeds, the command `summary`. Return the exit code.

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
    """Run `dvc repro` and return its exit code, or that of the stage that failed, or 128 plus the number of the signal that stopped it.

    The DVC that stands beside this Python is run, and its stages run this Python. Wait until DVC has ended, even after a signal.
    """
    sys.stdout.flush()
    search_path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return supervision.run_all([("dvc", "repro")], {**os.environ, "PATH": search_path, SUMMARY_FOLLOWS: "true"}, top=Path())
