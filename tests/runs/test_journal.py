import fcntl
import hashlib
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from pipeline.runs import events, journal
from pipeline.runs.journal import Journal, RunInfo
from pipeline.runs.record import Record, run_of_model


def begin(root: Path) -> Journal:
    return Journal.create(root, stage="train", info=RunInfo(params={"seed": 1}, name="a"))


def events_of_kind(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [dict(event.fields) for event in events.read(folder / events.EVENTS) if event.kind == kind]


def test_a_resumed_training_writes_no_step_twice(tmp_path: Path) -> None:
    first = begin(tmp_path)
    for step in (10, 20, 30):
        first.metrics(step, {"train/loss": 1 / step})
    first.metrics(30, {"valid/loss": 0.5})  # another metric of the same step is no repetition
    first.close()
    second = Journal.reopen(first.folder, stage="train", info=RunInfo())
    for step in (20, 30, 40):
        second.metrics(step, {"train/loss": 1 / step, "valid/loss": 0.4})
    second.close()
    points = [(event["step"], sorted(event["values"])) for event in events_of_kind(first.folder, "metrics")]
    assert points == [
        (10, ["train/loss"]),
        (20, ["train/loss"]),
        (30, ["train/loss"]),
        (30, ["valid/loss"]),
        (40, ["train/loss", "valid/loss"]),
    ]


def test_a_journal_has_one_writer_until_it_is_closed(tmp_path: Path) -> None:
    writing = begin(tmp_path)
    assert journal.is_written(writing.folder)
    with pytest.raises(BlockingIOError, match="another process"):
        Journal.reopen(writing.folder, stage="evaluate", info=RunInfo())
    writing.close()
    with (writing.folder / journal.WRITER_LOCK).open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_SH)  # another process asks at the same time
        assert not journal.is_written(writing.folder)


def test_the_events_of_a_journal_are_in_the_order_of_their_times_after_the_clock_was_set_back(tmp_path: Path, monkeypatch) -> None:
    """Of two scores at one step, MLflow shows the later one."""
    first = begin(tmp_path)
    first.close()
    now_ns = time.time_ns()
    for hours, value in enumerate((0.9, 0.8)):
        monkeypatch.setattr(time, "time_ns", lambda hours=hours: now_ns - hours * 3600 * 10**9)
        again = Journal.reopen(first.folder, stage="evaluate", info=RunInfo(), amends=True)
        again.metrics(5, {"test/accuracy": value})
        again.close()
    before, after = events_of_kind(first.folder, "metrics")
    assert before["time_ms"] < after["time_ms"]


def test_an_evaluation_with_other_settings_is_written_and_an_equal_one_is_not(tmp_path: Path) -> None:
    first = begin(tmp_path)
    first.close()
    for value in (0.9, 0.9, 0.8):
        again = Journal.reopen(first.folder, stage="evaluate", info=RunInfo(), amends=True)
        again.metrics(5, {"test/error": value})
        again.close()
    assert [event["values"]["test/error"] for event in events_of_kind(first.folder, "metrics")] == [0.9, 0.8]


def test_a_journal_copies_files_and_stores_equal_content_once(tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    path.write_text("first")
    written = begin(tmp_path)
    written.artifact(path, "plots")
    written.artifact(path, "plots")
    path.write_text("second")
    written.close()
    again = Journal.reopen(written.folder, stage="train", info=RunInfo())
    again.artifact(path, "plots")
    copies = [written.folder / event["file"] for event in events_of_kind(written.folder, "artifact")]
    assert [copy.read_text() for copy in copies] == ["first", "first", "second"]
    assert len(set(copies)) == 2


def test_the_newest_journal_of_a_model_is_found_by_its_digest_after_the_clock_was_set_back(tmp_path: Path, monkeypatch) -> None:
    model, journals = tmp_path / "model.safetensors", []
    for content, year in ((b"weights", 2030), (b"weights", 2020), (b"other weights", 2030)):
        monkeypatch.setattr(journal, "datetime", MagicMock(now=MagicMock(return_value=datetime(year, 1, 1, tzinfo=UTC))))
        model.write_bytes(content)
        journals.append(begin(tmp_path))
        journals[-1].model(model)
    folders = [written.folder for written in journals]
    assert journal.journals(tmp_path) == folders
    assert run_of_model(tmp_path, hashlib.sha256(b"weights").hexdigest()) == Record(folders[1])
    assert run_of_model(tmp_path, "0" * 64) is None
