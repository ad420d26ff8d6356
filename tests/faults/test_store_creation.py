"""The short form of `python -m tests.faults.store_creation 50`."""

import json
import subprocess
import sys

from tests.imports import TOP


def test_a_kill_while_the_store_is_created_loses_no_store_and_leaves_no_draft() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.faults.store_creation", "6"],
        cwd=TOP, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["in the draft"] > 0, "no kill came while the store was created"
    assert (seen["kills"], seen["lost"], seen["left over"]) == (6, 0, 0)
