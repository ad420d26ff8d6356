"""A save in which each call of the system fails in turn, and a disk that loses what nobody forced to it."""

import json
import subprocess
import sys

import pytest

from pipeline.io import files
from tests.faults import power_loss
from tests.imports import TOP


def call(*arguments: str) -> dict:
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=TOP, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_death_or_an_error_at_every_call_of_a_save_leaves_a_whole_checkpoint() -> None:
    story = call("tests.faults.every_call")
    if "skipped" in story:
        pytest.skip(story["skipped"])
    assert {"write", "fsync", "rename", "openat"} <= set(story["kinds"])
    assert story["seen"]["death"] == {"ended": story["calls"]}
    for errors in (story["seen"]["a full disk"], story["seen"]["a broken disk"]):
        assert errors["said"] >= 8, "writing, forcing and moving must each be able to fail"


def test_power_that_fails_between_any_two_steps_of_a_save_loses_no_checkpoint_that_was_finished(tmp_path) -> None:
    seen = power_loss.cut_everywhere(tmp_path)
    assert seen.instants >= 20
    assert seen.lost == []


@pytest.mark.parametrize("forgotten", ["file", "folder"])
def test_a_save_that_forgets_to_force_a_file_or_its_name_to_the_disk_is_found_out(tmp_path, monkeypatch, forgotten: str) -> None:
    sync = files.sync
    monkeypatch.setattr(files, "sync", lambda path: None if path.is_dir() == (forgotten == "folder") else sync(path))
    assert power_loss.cut_everywhere(tmp_path).lost != []
