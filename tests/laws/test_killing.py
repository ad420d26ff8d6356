"""A train stage that is killed by SIGKILL and repeated writes equal bytes in every file. A campaign that proves nothing fails."""

import json
import subprocess
import sys

import pytest

from tests.imports import TOP

LONG_FORMS = [pytest.param(name, count, marks=pytest.mark.slow) for name, count in (("digits", 12), ("code", 8))]


@pytest.mark.parametrize(("setting", "kills"), [("digits", 4), *LONG_FORMS])
def test_a_run_killed_at_any_moment_ends_in_the_same_bytes(setting: str, kills: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.killing", str(kills), setting],
        cwd=TOP,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["other_digests"] == 0
    assert outcome["kills"] == kills
    assert outcome["resumed"] >= kills // 4, f"too few kills came after the first checkpoint: {outcome}"
