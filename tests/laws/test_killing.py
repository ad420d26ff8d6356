"""A train stage that is killed by SIGKILL and repeated writes equal bytes in every file."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.__main__ import main
from tests import project
from tests.faults import killing
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


def test_a_training_that_fails_ends_the_campaign_with_its_output() -> None:
    command = [sys.executable, "-m", "tests.faults.killing", "1"]
    done = subprocess.run(
        command, cwd=TOP, env=os.environ | {"TEST_DEVICE": "cuda:99"}, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 1
    assert "exit 2:" in done.stderr
    assert "error: PIPELINE_DEVICE=cuda:99: " in done.stderr


@pytest.mark.parametrize("since_checkpoint", [False, True])
def test_a_child_that_fails_before_it_is_killed_is_an_error(tmp_path: Path, since_checkpoint: bool) -> None:
    (tmp_path / killing.LOG).write_text("the reason\n")
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", "raise SystemExit(3)"], os.environ)
    with pytest.raises(AssertionError, match="exit 3:\nthe reason"):
        killing.killed(child, tmp_path, 60.0, since_checkpoint=since_checkpoint)


@pytest.mark.parametrize(
    ("code", "message"), [("", "no checkpoint was seen"), ("import time; time.sleep(60)", "no end within 3.0 seconds")]
)
def test_an_undisturbed_training_without_a_checkpoint_or_an_end_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    (tmp_path / killing.LOG).touch()
    monkeypatch.setattr(killing, "LIMIT_S", 3.0)
    monkeypatch.setattr(killing, "fork", lambda *_: os.posix_spawn(sys.executable, [sys.executable, "-c", code], os.environ))
    begin_s = time.monotonic()
    with pytest.raises(AssertionError, match=message):
        killing.undisturbed(tmp_path)
    assert time.monotonic() - begin_s < 2 * killing.LIMIT_S


def test_trainings_that_always_end_before_they_are_killed_end_the_campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(killing, "fork", lambda *_: 0)
    monkeypatch.setattr(killing, "finish", lambda *_: None)
    monkeypatch.setattr(killing, "undisturbed", lambda *_: (1.0, 1.0))
    monkeypatch.setattr(killing, "killed", lambda *_, **__: False)
    with pytest.raises(AssertionError, match="digits: only 0 of 20 trainings were killed before they ended, 2 were asked for"):
        killing.campaign(tmp_path, 2, "digits", seed=1)


def test_the_results_name_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(project.make(tmp_path, CHANGES))
    assert main(["prepare"]) == main(["train"]) == 0
    for name in RESULTS:
        content = Path(name).read_bytes()
        assert str(tmp_path).encode() not in content
        assert str(TOP).encode() not in content
