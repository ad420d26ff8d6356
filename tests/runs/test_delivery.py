"""A delivery begins at the saved position, and ends before what MLflow fails to store. The store is a fake, so nothing here waits."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from pipeline import tools
from pipeline.core import files
from pipeline.core.environment import Environment
from pipeline.runs import events
from pipeline.runs.events import EVENTS, SYSTEM, Cursor, is_pending
from pipeline.runs.journal import COPIES, MIRROR_LOCK, MODEL, Journal, RunInfo, is_written
from pipeline.runs.mlflow import comparison_view, delivery, mirror
from pipeline.runs.mlflow.address import Address
from pipeline.runs.mlflow.delivery import Delivery
from pipeline.runs.mlflow.store import Store
from tests.runs.conftest import Tracked, finish

Follow = Callable[[Path], int]


class FakeServer:
    """Accepts every event except those in `failing`: names of files, the status of an end, and kinds of others. `accepted` has these, too."""

    def __init__(self, environment: Environment) -> None:
        self.failing: set[str] = set()
        self.accepted: list[str] = []
        self.store: Any = MagicMock(Store, address=Address.of(environment), client=MagicMock())
        self.store.run_for.return_value.info.run_id = "a run"
        self.store.run_for.return_value.info.experiment_id = "1"

    def sender(self, *_: object) -> SimpleNamespace:
        return SimpleNamespace(send=self.send)

    def send(self, batch: list[events.Event]) -> None:
        for event in batch:
            name = Path(event.fields.get("file", "")).name or event.fields.get("status", event.kind)
            if name in self.failing:
                raise TimeoutError
            self.accepted.append(name)

    def delivery(self, folder: Path) -> Delivery:
        return Delivery(folder, self.store)

    def cursor(self, folder: Path) -> Cursor:
        return Cursor.load(folder, self.store.address.key)


@pytest.fixture
def server(without_mirror: Environment, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    server = FakeServer(without_mirror)
    monkeypatch.setattr(delivery, "Sender", server.sender)
    return server


@pytest.fixture
def follow(server: FakeServer, without_mirror: Environment, monkeypatch: pytest.MonkeyPatch) -> Follow:
    """Return `mirror.follow` for this server. It records no system metrics, and does not pause while a stage runs."""
    monkeypatch.setattr(mirror, "Sampler", MagicMock())
    monkeypatch.setattr(mirror, "Store", lambda _: server.store)
    monkeypatch.setattr(mirror, "poll", lambda is_over, _: is_over())
    return lambda folder: mirror.follow(folder, without_mirror)


def write_journal(root: Path, *names: str, ended: bool = True) -> Path:
    """Write a journal with files called `names`."""
    journal = Journal.create(root, stage="train", info=RunInfo())
    for name in names:
        journal.text(name, b"")
    if ended:
        finish(journal)
    return journal.folder


@pytest.mark.parametrize("failing", ["start", "b", "metrics", "model.safetensors", "FINISHED"])
def test_a_delivery_ends_before_an_event_that_fails_and_the_next_one_begins_there(server: FakeServer, tmp_path: Path, failing: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"a model")
    journal, whole = (
        Journal.create(tmp_path, stage="train", info=RunInfo()),
        ["start", "a", "b", "metrics", "model.safetensors", "FINISHED"],
    )
    for name in "ab":
        journal.text(name, b"")
    journal.metrics(1, {"test/loss": 0.5})
    journal.model(tmp_path / "model.safetensors")
    finish(journal)
    server.failing = {failing}
    for _ in range(2):
        with pytest.raises(TimeoutError):
            server.delivery(journal.folder).catch_up()
        assert server.accepted == whole[: whole.index(failing)]
        assert is_pending(journal.folder)
    server.failing.clear()
    assert server.delivery(journal.folder).catch_up()
    assert server.accepted == whole
    assert not is_pending(journal.folder)


def test_a_run_without_an_end_gets_the_status_killed(server: FakeServer, tmp_path: Path) -> None:
    assert mirror.deliver(write_journal(tmp_path, ended=False), server.store)
    assert server.accepted == ["start", "KILLED"]


@pytest.mark.parametrize("ended", [True, False])
def test_a_kill_before_the_copies_are_removed_leaves_the_run_to_be_finished(server: FakeServer, tmp_path, monkeypatch, ended: bool) -> None:
    folder = write_journal(tmp_path, "a", ended=ended)
    system = events.Writer(folder / SYSTEM, end=0)
    system.append({"kind": "metrics", "time_ms": 1, "step": 0, "values": {}})
    system.close()
    (folder / MODEL).touch()
    monkeypatch.setattr(comparison_view, "update", MagicMock(side_effect=[None, KeyboardInterrupt, None]))
    with pytest.raises(KeyboardInterrupt):
        server.delivery(folder).catch_up()
    assert is_pending(folder)
    assert server.delivery(folder).catch_up()
    assert not is_pending(folder)
    assert {COPIES, MODEL}.isdisjoint(path.name for path in folder.iterdir())
    assert server.accepted == (
        ["start", "a", "FINISHED", "metrics", "FINISHED"] if ended else ["start", "a", "metrics", "KILLED", "KILLED"]
    )


def test_a_file_that_a_stage_adds_during_the_last_delivery_is_kept_and_sent(server: FakeServer, tmp_path: Path, monkeypatch) -> None:
    folder = write_journal(tmp_path, "a")

    def add(*_: object) -> None:
        if server.accepted[-1] == "FINISHED" and len(server.accepted) == 3:
            added = Journal.reopen(folder, stage="evaluate", info=RunInfo())
            added.text("b", b"new")
            finish(added)

    monkeypatch.setattr(comparison_view, "update", add)
    assert not server.delivery(folder).catch_up()
    assert list(folder.glob(f"{COPIES}/*/b"))
    assert server.delivery(folder).catch_up()
    assert server.accepted == ["start", "a", "FINISHED", "FINISHED", "reopen", "b", "FINISHED"]


def test_the_file_with_the_private_keys_of_the_ui_can_be_deleted(server: FakeServer, tmp_path: Path, monkeypatch, capfd) -> None:
    for name in ("ui", "repro"):
        monkeypatch.setattr(tools, name, import_module(f"pipeline.tools.{name}"))  # to be restored, because the next import sets it
        monkeypatch.delitem(sys.modules, f"pipeline.tools.{name}")
    monkeypatch.setitem(sys.modules, comparison_view.__name__, None)
    monkeypatch.delattr("pipeline.runs.mlflow.comparison_view")
    assert import_module("pipeline.tools.repro").ui.runs_page("7") == "#/experiments/7/runs"
    assert server.delivery(write_journal(tmp_path)).catch_up()
    assert "the comparison of runs, which failed: ModuleNotFoundError" in capfd.readouterr().err


def test_a_damaged_line_holds_up_none_behind_it(server: FakeServer, tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, stage="train", info=RunInfo())
    journal.metrics(1, {"a": 1.0})
    finish(journal)
    path = journal.folder / EVENTS
    first, metrics, end = path.read_text().splitlines(keepends=True)
    path.write_text(first + metrics.replace("values", "xxxxxx") + end)
    mirror.deliver(journal.folder, server.store)
    assert server.accepted == ["start", "unreadable", "FINISHED"]
    assert not is_pending(journal.folder)


def test_system_metrics_are_sent_while_a_stage_runs_but_after_its_first_metric(server: FakeServer, tmp_path: Path) -> None:
    running = Journal.create(tmp_path, stage="train", info=RunInfo())
    sample = {"kind": "metrics", "time_ms": 1, "step": 0, "values": {"system/cpu": 1.0}}
    events.Writer(running.folder / SYSTEM, end=0).append(sample)
    delivered = server.delivery(running.folder)
    delivered.catch_up()
    assert server.accepted == ["start"]
    running.metrics(1, {"train/loss": 1.0})
    delivered.catch_up()
    assert server.accepted == ["start", "metrics", "metrics"]
    finish(running)


def test_only_one_process_delivers_a_journal(server: FakeServer, tmp_path: Path) -> None:
    folder = write_journal(tmp_path)
    with files.locked(folder / MIRROR_LOCK, wait=False):
        assert not mirror.deliver(folder, server.store)
    assert server.accepted == []


def test_metrics_are_sent_together_and_everything_else_alone() -> None:
    kinds = ["start", *["metrics"] * (delivery.EVENTS_AT_ONCE + 1), "description", "description", "end"]
    sizes = [len(batch) for batch in delivery.batches(events.Event(0, {"kind": kind}) for kind in kinds)]
    assert sizes == [1, delivery.EVENTS_AT_ONCE, 1, 1, 1, 1]


def test_a_mirror_tries_again_while_the_stage_runs_and_for_a_moment_after_it(
    server: FakeServer, follow: Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(mirror, "LAST_ATTEMPTS_S", 0.0)
    journal, attempts = Journal.create(tmp_path, stage="train", info=RunInfo()), []

    def run_for(*_: object) -> None:
        attempts.append(None)
        if len(attempts) == 5:
            finish(journal)
        raise TimeoutError("no answer")

    server.store.run_for.side_effect = run_for
    assert follow(journal.folder) == 1
    assert len(attempts) == 6
    assert capsys.readouterr().err.splitlines() == [f"tracking: delivery attempt {n} failed: TimeoutError: no answer" for n in (1, 2, 4)]


def test_a_stage_that_adds_to_the_journal_for_a_moment_does_not_end_the_mirror_on_which_it_relies(
    follow: Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, finish_run, busy = write_journal(tmp_path, "a"), Delivery._finish, [BlockingIOError("a stage has the journal open")]

    def finish_when_free(delivery: Delivery, last: events.Event | None) -> None:
        if busy:
            raise busy.pop()
        finish_run(delivery, last)

    monkeypatch.setattr(Delivery, "_finish", finish_when_free)
    assert follow(folder) == 0
    assert not is_pending(folder)


def test_a_finished_delivery_keeps_stages_off_the_journal_and_is_not_taken_for_one(server: FakeServer, tmp_path: Path, monkeypatch) -> None:
    folder, removed = write_journal(tmp_path), []

    def remove(copies: Path, **_: bool) -> None:
        removed.append(copies)
        assert not is_written(folder)
        with pytest.raises(BlockingIOError):
            Journal.reopen(folder, stage="evaluate", info=RunInfo())

    monkeypatch.setattr(delivery.shutil, "rmtree", remove)
    assert server.delivery(folder).catch_up()
    assert removed == [folder / COPIES]


@pytest.mark.parametrize("is_running", [True, False])
def test_a_mirror_delivers_what_a_stage_adds_during_its_last_delivery(
    server: FakeServer, follow: Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_running: bool
) -> None:
    """The stage relies on this mirror, whose lock it found taken. It has system metrics, too, if it still runs then."""
    folder, finish_run, sampler = write_journal(tmp_path, "a"), Delivery._finish, MagicMock()
    opened: list[Journal] = []

    def finished(self: Delivery, *arguments: Any) -> None:
        finish_run(self, *arguments)
        if not opened:
            opened.append(Journal.reopen(folder, stage="evaluate", info=RunInfo()))
            if not is_running:
                finish(*opened)

    def poll(is_over: Callable[[], bool], _: float) -> bool:
        if is_running and sampler.return_value.start.call_count == 2:
            finish(*opened)
        return is_over()

    monkeypatch.setattr(Delivery, "_finish", finished)
    monkeypatch.setattr(mirror, "poll", poll)
    monkeypatch.setattr(mirror, "Sampler", sampler)
    assert follow(folder) == 0
    assert server.accepted == ["start", "a", "FINISHED", "reopen", "FINISHED"]
    assert sampler.return_value.stop.call_count == sampler.return_value.start.call_count == 2
    with files.locked(folder / MIRROR_LOCK, wait=False) as taken:
        assert taken


def test_a_mirror_looks_once_more_before_it_ends(
    server: FakeServer, follow: Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, deliver_stages = write_journal(tmp_path), mirror.deliver_stages

    def delivered(*arguments: Any) -> bool:
        is_delivered = deliver_stages(*arguments)
        if len(server.accepted) == 2:  # a stage found the lock taken just before this process releases it
            finish(Journal.reopen(folder, stage="evaluate", info=RunInfo()))
        return is_delivered

    monkeypatch.setattr(mirror, "deliver_stages", delivered)
    assert follow(folder) == 0
    assert server.accepted == ["start", "FINISHED", "reopen", "FINISHED"]


@pytest.mark.parametrize("is_down", [True, False])
def test_a_journal_that_fails_holds_up_no_other_while_mlflow_answers(
    server: FakeServer, without_mirror: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_down: bool
) -> None:
    folders, server.failing = [write_journal(tmp_path, tag) for tag in "ab"], {"a"}
    server.store.is_reachable.return_value = not is_down
    monkeypatch.setattr(mirror, "Store", lambda _: server.store)
    assert mirror.sync(without_mirror) == 1 + is_down
    assert [is_pending(folder) for folder in folders] == [True, is_down]


def test_a_run_becomes_a_child_of_the_run_that_its_journal_names(tracked: Tracked) -> None:
    root, store = tracked.environment.root, Store(tracked.environment)
    parent = Journal.create(root, stage="search", info=RunInfo(name="a search"), experiment="children")
    child = Journal.create(root, stage="train", info=RunInfo(tags={"pipeline.parent": parent.folder.name}), experiment="children")
    for journal in (parent, child):
        finish(journal)
    early = Delivery(child.folder, store)
    assert early.catch_up(), "a child whose parent is not in MLflow yet is delivered too"
    assert "mlflow.parentRunId" not in tracked.run_of(child.folder.name).data.tags
    mirror.deliver(parent.folder, store)
    reopened = Journal.reopen(child.folder, stage="search", info=RunInfo(tags={"pipeline.pruned": "true"}))
    reopened.end("KILLED")
    reopened.close()
    mirror.deliver(child.folder, store)
    run = tracked.run_of(child.folder.name)
    assert run.data.tags["mlflow.parentRunId"] == tracked.run_of(parent.folder.name).info.run_id
    assert (run.info.status, run.data.tags["pipeline.pruned"]) == ("KILLED", "true")
