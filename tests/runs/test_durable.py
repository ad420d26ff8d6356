"""What a power cut, a restored backup and repeated kills leave of a journal, and what MLflow is tracked then."""

from pathlib import Path

import pytest

from pipeline.core import files
from pipeline.runs import events
from pipeline.runs.events import DELIVERED, Cursor, is_pending
from pipeline.runs.journal import Journal
from pipeline.runs.mlflow import delivery
from pipeline.runs.mlflow.sender import Sender
from pipeline.runs.mlflow.store import Store
from tests.runs.conftest import RUN_INFO, Tracked, finish


def test_a_line_is_delivered_only_after_it_was_fsynced(tracked: Tracked, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line written while the journal is forced to the disk waits for the next time."""
    writing = tracked.begin()
    writing.metrics(1, {"a": 1.0})
    path, durable, fsync, sent = writing.folder / events.EVENTS, [0], files.sync, []

    def sync(target: Path) -> None:
        size = path.stat().st_size
        writing.metrics(2 + len(durable), {"a": 2.0})
        fsync(target)
        if target == path:
            durable.append(size)

    def send(_: Sender, batch: list[events.Event]) -> None:
        sent.append(batch[-1].end)
        assert batch[-1].end <= durable[-1]

    monkeypatch.setattr(files, "sync", sync)
    monkeypatch.setattr(Sender, "send", send)
    delivered = delivery.Delivery(writing.folder, Store(tracked.environment))
    delivered.catch_up()
    assert sent
    assert sent[-1] < path.stat().st_size
    finish(writing)


@pytest.mark.parametrize("name", [events.EVENTS, events.SYSTEM])
def test_a_restored_journal_is_delivered_from_its_beginning_even_if_it_has_grown_past_the_old_position(tmp_path: Path, name: str) -> None:
    writing = Journal.create(tmp_path, stage="train", info=RUN_INFO)
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
            Cursor("a run", "1", {name: path.stat().st_size, other: 0}, has_ended=True).save(writing.folder, "a store")
            assert Cursor.load(writing.folder, "a store").has_ended
    for content in (path.read_bytes(), path.read_bytes()[:backup_size]):
        path.write_bytes(content)
        assert Cursor.load(writing.folder, "a store") == Cursor("a run", "1")
        assert is_pending(writing.folder)


def test_params_are_compared_and_not_logged_again(tracked: Tracked, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tracked.begin(RUN_INFO)
    first.close()
    tracked.deliver(first.folder)
    client_type = type(tracked.client)
    log_batch, logged = client_type.log_batch, []

    def watched(self: object, run_id: str, metrics: tuple = (), params: tuple = (), tags: tuple = (), **more: object) -> None:
        logged.append(list(params))
        log_batch(self, run_id, metrics=metrics, params=params, tags=tags, **more)

    monkeypatch.setattr(client_type, "log_batch", watched)
    for _ in range(2):
        Journal.reopen(first.folder, stage="train", info=RUN_INFO).close()
        tracked.deliver(first.folder)
    assert logged
    assert not any(logged)
    assert not [name for name in tracked.run_of(first.folder.name).data.tags if name.startswith("pipeline.changed")]


def test_file_copies_are_deleted_after_a_complete_delivery_and_events_are_kept(tracked: Tracked, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("some text")
    writing = tracked.begin()
    writing.artifact(text)
    tracked.deliver(writing.folder)
    assert list(writing.folder.glob("files/*/*")), "a journal that is written keeps them"
    finish(writing)
    tracked.deliver(writing.folder)
    assert not (writing.folder / "files").exists()
    before = (writing.folder / events.EVENTS).read_bytes()
    (writing.folder / DELIVERED).write_text("torn {")
    assert tracked.deliver(writing.folder)
    assert (writing.folder / events.EVENTS).read_bytes() == before
    assert "pipeline.refused" not in tracked.run_of(writing.folder.name).data.tags, "it is the same run, and the only one"
