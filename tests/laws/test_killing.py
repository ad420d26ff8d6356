"""A train stage that is killed by SIGKILL and repeated writes equal bytes in every file. A campaign that proves nothing fails."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import project
from tests.faults import killing
from tests.imports import TOP

LONG_FORMS = [pytest.param(name, 30 if name == "digits" else 20, marks=pytest.mark.slow) for name in project.SETTINGS]


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


def test_a_child_that_fails_before_it_is_killed_is_an_error(tmp_path: Path) -> None:
    (tmp_path / killing.LOG).write_text("the reason\n")
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", "raise SystemExit(3)"], os.environ)
    with pytest.raises(AssertionError, match="exit 3:\nthe reason"):
        killing.killed(child, tmp_path, 60.0, since_checkpoint=False)


def test_an_undisturbed_training_without_a_checkpoint_or_an_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / killing.LOG).touch()
    for command, limit_s, message in ((["true"], 60.0, "no checkpoint was seen"), (["sleep", "60"], 0.5, "no end within 0.5 seconds")):
        monkeypatch.setattr(killing, "LIMIT_S", limit_s)
        monkeypatch.setattr(killing, "fork", lambda *_, command=command: os.posix_spawnp(command[0], command, os.environ))
        with pytest.raises(AssertionError, match=message):
            killing.undisturbed(tmp_path)


def test_trainings_that_always_end_before_they_are_killed_end_the_campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(killing, "fork", lambda *_: 0)
    monkeypatch.setattr(killing, "finish", lambda *_: None)
    monkeypatch.setattr(killing, "undisturbed", lambda *_: (1.0, 1.0))
    monkeypatch.setattr(killing, "killed", lambda *_, **__: False)
    with pytest.raises(AssertionError, match="digits: only 0 of 20 trainings were killed before they ended, 2 were asked for"):
        killing.campaign(tmp_path, 2, "digits", seed=1)
