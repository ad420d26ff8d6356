"""Each system call of a save fails in turn, and a disk loses what was not synced."""

import pytest

from pipeline.core import files
from tests.faults import power_loss
from tests.forking import campaign


def test_a_kill_or_an_error_at_every_call_of_a_save_leaves_a_whole_checkpoint() -> None:
    outcome = campaign("tests.faults.every_call")
    if "skipped" in outcome:
        pytest.skip(outcome["skipped"])
    assert {"write", "fsync", "rename", "openat"} <= set(outcome["kinds"])
    assert outcome["seen"]["death"] == {"ended": outcome["calls"]}
    for errors in (outcome["seen"]["a full disk"], outcome["seen"]["a broken disk"]):
        assert errors["said"] >= 4, "writing, forcing and moving must each be able to fail"


def test_a_power_cut_at_any_moment_of_a_save_loses_no_finished_checkpoint(tmp_path) -> None:
    seen = power_loss.cut_everywhere(tmp_path)
    assert seen.instants >= 20
    assert seen.lost == []


@pytest.mark.parametrize("forgotten", ["file", "folder"])
def test_a_save_without_fsync_of_the_file_or_its_folder_is_detected(tmp_path, monkeypatch, forgotten: str) -> None:
    sync = files.sync
    monkeypatch.setattr(files, "sync", lambda path: None if path.is_dir() == (forgotten == "folder") else sync(path))
    assert power_loss.cut_everywhere(tmp_path).lost != []
