import json
import os
from pathlib import Path

import pytest

from pipeline.runs import events
from pipeline.runs.journal import Journal, RunInfo


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / events.EVENTS
    writer = events.Writer(path, end=0)
    for step in range(3):
        writer.append({"kind": "metrics", "time_ms": 1, "step": step, "values": {}})
    writer.close()
    return path


def test_a_torn_last_line_is_not_read(path: Path) -> None:
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert len(list(events.read(path))) == whole[:size].count(b"\n")
        assert not events.has_more(path, whole[:size].rfind(b"\n") + 1)


def test_a_writer_that_reopens_truncates_a_torn_line(path: Path) -> None:
    end = path.stat().st_size
    path.write_bytes(path.read_bytes() + b'{"kind": "met')
    writer = events.Writer(path, end)
    writer.append({"kind": "end", "time_ms": 1, "status": "FINISHED"})
    assert [event.kind for event in events.read(path)] == ["metrics", "metrics", "metrics", "end"]


def test_lines_after_a_damaged_one_are_read(path: Path) -> None:
    path.write_bytes(b"\0\0\0\n[1]\n" + path.read_bytes())
    assert [event.kind for event in events.read(path)] == ["unreadable", "unreadable", "metrics", "metrics", "metrics"]


def test_a_line_without_one_of_its_fields_is_unreadable() -> None:
    for kind, fields in events.FIELDS.items():
        whole = {"kind": kind, "time_ms": 1, **{name: type_() for name, type_ in fields.items()}}
        assert events.decoded(json.dumps(whole).encode()) == whole
        for name in whole:
            without = {other: value for other, value in whole.items() if other != name}
            for damaged in (without, {**whole, name: None}):
                assert events.Event(0, events.decoded(json.dumps(damaged).encode())).kind == "unreadable"


def test_a_line_that_does_not_fit_on_the_disk_leaves_the_file_unchanged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, write = path.read_bytes(), os.write
    writer = events.Writer(path, end=len(before))
    monkeypatch.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:5]))
    with pytest.raises(OSError, match="only 5 of"):
        writer.append({"kind": "end"})
    assert path.read_bytes() == before


def test_a_text_that_is_no_unicode_is_written_with_question_marks(path: Path) -> None:
    writer = events.Writer(path, end=0)
    writer.append({"kind": "description", "time_ms": 1, "text": "a\udcff"})
    writer.close()
    assert [event.fields["text"] for event in events.read(path)] == ["a?"]


def test_nan_and_infinity_survive_json() -> None:
    assert [float(events.number(value)) for value in (1.5, float("inf"), float("-inf"))] == [1.5, float("inf"), float("-inf")]
    assert events.number(float("nan")) == "nan"


@pytest.mark.parametrize("name", [events.EVENTS, events.SYSTEM])
def test_a_restored_journal_is_delivered_from_its_beginning_even_if_it_has_grown_past_the_old_position(tmp_path: Path, name: str) -> None:
    writing = Journal.create(tmp_path, stage="train", info=RunInfo())
    writing.close()
    path = writing.folder / name
    path.touch()
    other = {events.EVENTS: events.SYSTEM, events.SYSTEM: events.EVENTS}[name]
    backup_size = path.stat().st_size
    for num_lines in (2, 3):  # the lines after the backup are as long as those that it lacks, so a line ends at the old position
        lines = events.Writer(path, end=backup_size)
        for time_ms in range(num_lines):
            lines.append({"kind": "metrics", "time_ms": num_lines * 10 + time_ms, "step": 1, "values": {"a": 1.0}})
        lines.close()
        if num_lines == 2:
            events.Cursor("a run", "1", {name: path.stat().st_size, other: 0}, has_ended=True).save(writing.folder, "a store")
            assert events.Cursor.load(writing.folder, "a store").has_ended
    for content in (path.read_bytes(), path.read_bytes()[:backup_size]):
        path.write_bytes(content)
        assert events.Cursor.load(writing.folder, "a store") == events.Cursor("a run", "1")
        assert events.is_pending(writing.folder)


@pytest.mark.parametrize(("delayed", "num_left"), [({}, 1), ({"model": 1, "artifact plots/a.csv": 0}, 3)])
def test_a_position_that_an_earlier_version_saved_is_read(path: Path, delayed: dict[str, int], num_left: int) -> None:
    """It may have sent events after files that it noted as delayed: the files are sent, and these events again."""
    ends = [0, *(event.end for event in events.read(path))]
    events.Cursor("a run", offsets={events.EVENTS: ends[2], events.SYSTEM: 0}).save(path.parent, "a store")
    saved = events.read_stores(path.parent)
    saved["a store"] |= {"has_failed": True, "delayed": {what: ends[index] for what, index in delayed.items()}}
    (path.parent / events.DELIVERED).write_text(json.dumps(saved))
    cursor = events.Cursor.load(path.parent, "a store")
    assert cursor.run_id == "a run"
    assert len(list(events.read(path, cursor.offsets[events.EVENTS]))) == num_left
