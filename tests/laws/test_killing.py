"""A train stage that is killed by SIGKILL and repeated writes equal bytes in every file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.__main__ import main
from tests import project
from tests.faults.killing import CHANGES, RESULTS, VARIABLES
from tests.imports import TOP


@pytest.mark.parametrize(
    ("setting", "kills"),
    [
        ("digits", 8),
        ("texts", 3),
        ("code", 3),
        *(pytest.param(name, 30 if name == "digits" else 20, marks=pytest.mark.slow) for name in project.SETTINGS),
    ],
)
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


def test_the_results_name_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(project.make(tmp_path, CHANGES))
    assert main(["prepare"]) == main(["train"]) == 0
    for name in RESULTS:
        content = Path(name).read_bytes()
        assert str(tmp_path).encode() not in content
        assert str(TOP).encode() not in content
