"""Mirrors killed while they create the SQLite store, in fewer rounds than `python -m tests.faults.store_creation 50`."""

import json
import subprocess
import sys

import pytest

from tests.imports import TOP


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_a_kill_while_the_store_is_created_loses_no_store_and_leaves_no_draft(kills: int) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.faults.store_creation", str(kills)],
        cwd=TOP, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["in the draft"] > 0, "no kill came while the store was created"
    assert (seen["kills"], seen["lost"], seen["left over"]) == (kills, 0, 0)
