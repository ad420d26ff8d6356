"""Files that MLflow fails to store hold up no others. The store is a fake, so nothing here waits."""

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
from pipeline.runs.journal import COPIES, MIRROR_LOCK, MODEL, WRITER_LOCK, Journal, RunInfo
from pipeline.runs.mlflow import comparison_view, delivery, mirror
from pipeline.runs.mlflow.address import Address
from pipeline.runs.mlflow.delivery import Delivery
from pipeline.runs.mlflow.store import Store
from tests.runs.conftest import Tracked, finish

Follow = Callable[[Path], int]


class FakeServer:
    """Accepts every event except the files in `failing`; `is_down` fails every request. `accepted` has kinds of events and names of files."""

    def __init__(self, environment: Environment) -> None:
        self.failing: set[str] = set()
        self.is_down = False
        self.accepted: list[str] = []
        self.store: Any = MagicMock(Store, address=Address.of(environment), client=MagicMock())
        self.store.run_for.return_value.info.run_id = "a run"
        self.store.run_for.return_value.info.experiment_id = "1"
        self.store.is_reachable.side_effect = lambda: not self.is_down

    def sender(self, *_: object) -> SimpleNamespace:
        return SimpleNamespace(send=self.send, tag=self.tag)

    def send(self, batch: list[events.Event]) -> None:
        for event in batch:
            name = Path(event.fields.get("file", "")).name
            if self.is_down or name in self.failing:
                raise TimeoutError
            self.accepted.append(name or event.kind)

    def tag(self, _: dict[str, str]) -> None:
        if self.is_down:
            raise TimeoutError

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
def follow(server: FakeServer, without_mirror: Environment, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], int]:
    """Return `mirror.follow` for this server. It records no system metrics, and its clock stands still, also in pauses."""
    monkeypatch.setattr(mirror, "Sampler", MagicMock())
    monkeypatch.setattr(mirror, "Store", lambda _: server.store)
    monkeypatch.setattr(mirror, "time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setattr(mirror, "pause", lambda *_, **__: None)
    return lambda folder: mirror.follow(folder, without_mirror)


def write_journal(root: Path, *names: str, ended: bool = True) -> Path:
    """Write a journal with files called `names`."""
    journal = Journal.create(root, stage="train", info=RunInfo())
    for name in names:
        journal.text(name, b"")
    if ended:
        finish(journal)
    return journal.folder


def test_files_that_always_fail_hold_up_none_behind_them_and_are_sent_again_after_the_stage(server: FakeServer, tmp_path: Path) -> None:
    journal, server.failing = Journal.create(tmp_path, stage="train", info=RunInfo()), {"a", "b"}
    for name in "abc":
        journal.text(name, b"old")
    running = server.delivery(journal.folder)
    for _ in range(2):
        assert not running.catch_up()
    assert server.accepted == ["start", "c"]
    server.failing = {"a"}
    journal.text("b", b"new")
    finish(journal)
    for _ in range(2):
        assert not server.delivery(journal.folder).catch_up()
        assert is_pending(journal.folder)
    assert server.accepted[2:] == ["b", "b", "end", "end"], "the old file before the new one"
    server.failing.clear()
    assert server.delivery(journal.folder).catch_up()
    assert server.accepted[6:] == ["a", "end"]
    assert not is_pending(journal.folder)


def test_a_file_that_fails_is_not_sent_again_over_a_newer_one(server: FakeServer, tmp_path: Path) -> None:
    journal, server.failing = Journal.create(tmp_path, stage="train", info=RunInfo()), {"a"}
    journal.text("a", b"old")
    running = server.delivery(journal.folder)
    running.catch_up()
    server.failing.clear()
    journal.text("a", b"new")
    running.catch_up()
    finish(journal)
    assert running.catch_up()
    assert server.accepted == ["start", "a", "end"]


def test_scores_after_a_model_that_failed_are_sent_again_for_it(server: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"a model")
    journal, server.failing = Journal.create(tmp_path, stage="train", info=RunInfo()), {"model.safetensors"}
    journal.metrics(1, {"valid/loss": 0.5})
    journal.model(tmp_path / "model.safetensors")
    journal.metrics(1, {"test/loss": 0.5})
    finish(journal)
    assert not server.delivery(journal.folder).catch_up()
    server.failing.clear()
    assert server.delivery(journal.folder).catch_up()
    assert server.accepted == ["start", "metrics", "metrics", "end", "model.safetensors", "metrics", "end"]


def test_any_other_event_is_waited_for(server: FakeServer, tmp_path: Path) -> None:
    folder, server.failing = write_journal(tmp_path), {""}
    with pytest.raises(TimeoutError):
        server.delivery(folder).catch_up()
    assert server.cursor(folder).offsets[EVENTS] == 0
    server.failing.clear()
    assert server.delivery(folder).catch_up()
    assert server.accepted == ["start", "end"]


def test_a_killed_run_gets_its_status_although_a_file_of_it_fails(server: FakeServer, tmp_path: Path) -> None:
    folder, server.failing = write_journal(tmp_path, "a", ended=False), {"a"}
    assert not mirror.deliver(folder, server.store)
    server.store.client.set_terminated.assert_called_once()
    assert server.store.client.set_terminated.call_args.args == ("a run", "KILLED")


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
    assert server.store.client.set_terminated.called != ended


def test_the_file_with_the_private_keys_of_the_ui_can_be_deleted(server: FakeServer, tmp_path: Path, monkeypatch, capfd) -> None:
    for name in ("ui", "repro"):
        monkeypatch.setattr(tools, name, import_module(f"pipeline.tools.{name}"))  # to be restored, because the next import sets it
        monkeypatch.delitem(sys.modules, f"pipeline.tools.{name}")
    monkeypatch.setitem(sys.modules, comparison_view.__name__, None)
    monkeypatch.delattr("pipeline.runs.mlflow.comparison_view")
    assert import_module("pipeline.tools.repro").ui.runs_page("7") == "#/experiments/7/runs"
    assert server.delivery(write_journal(tmp_path)).catch_up()
    assert capfd.readouterr() == ("", "")


def test_a_damaged_line_holds_up_none_behind_it(server: FakeServer, tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, stage="train", info=RunInfo())
    journal.metrics(1, {"a": 1.0})
    finish(journal)
    path = journal.folder / EVENTS
    first, metrics, end = path.read_text().splitlines(keepends=True)
    path.write_text(first + metrics.replace("values", "xxxxxx") + end)
    mirror.deliver(journal.folder, server.store)
    assert server.accepted == ["start", "unreadable", "end"]
    assert not is_pending(journal.folder)


def test_the_lock_of_the_writer_is_free_while_copies_are_removed(server: FakeServer, tmp_path: Path, monkeypatch) -> None:
    folder = write_journal(tmp_path, "a")
    are_free = []

    def rmtree(path: Path, **_: object) -> None:
        with files.locked(folder / WRITER_LOCK, wait=False) as taken:
            are_free.append(taken)

    monkeypatch.setattr("shutil.rmtree", rmtree)
    assert server.delivery(folder).catch_up()
    assert are_free
    assert all(are_free)


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


def test_a_mirror_delivers_journals_of_earlier_runs_after_its_own_and_those_with_a_failed_file_last(
    server: FakeServer, follow: Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed, left, own = (write_journal(tmp_path, tag) for tag in "abc")
    server.failing = {"a"}
    assert not server.delivery(failed).catch_up()
    order: list[Path] = []
    catch_up = Delivery.catch_up

    def recorded(self: Delivery) -> bool:
        order.append(self._folder)
        with files.locked(own / MIRROR_LOCK, wait=False) as taken:
            assert not taken, "a stage that continues the journal relies on this mirror"
        return catch_up(self)

    monkeypatch.setattr(Delivery, "catch_up", recorded)
    assert follow(own) == 0
    assert order == [own, left, failed]


def test_only_a_failed_event_makes_the_mirror_pause_after_the_stage_has_ended(
    server: FakeServer, follow: Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, finish_run, pauses, times_s = write_journal(tmp_path, "a"), Delivery._finish, [], [0.0]

    def finished(self: Delivery, *arguments: Any) -> None:
        if len(server.accepted) == 3:  # the next stage adds its events while those of this one are delivered, however long that takes
            finish(Journal.reopen(folder, stage="evaluate", info=RunInfo()))
            times_s.append(mirror.LAST_ATTEMPTS_S + 1)
        finish_run(self, *arguments)

    def pause(pause_s: float, *_: object, **__: object) -> None:
        pauses.append(pause_s)
        if pause_s == mirror.DELIVER_EVERY_S:
            server.failing.clear()

    monkeypatch.setattr(Delivery, "_finish", finished)
    monkeypatch.setattr(mirror, "pause", pause)
    monkeypatch.setattr(mirror, "time", SimpleNamespace(monotonic=lambda: times_s[-1]))
    assert follow(folder) == 0
    assert server.accepted == ["start", "a", "end", "end", "reopen", "end"]
    assert pauses == [mirror.START_AFTER_S]
    other, server.failing = write_journal(tmp_path, "b"), {"b"}
    assert follow(other) == 0
    assert pauses[1:] == [mirror.START_AFTER_S, mirror.DELIVER_EVERY_S]


def test_a_stage_that_begins_during_the_last_delivery_of_the_one_before_has_system_metrics_too(
    follow: Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, finish_run, sampler = write_journal(tmp_path, "a"), Delivery._finish, MagicMock()
    opened: list[Journal] = []

    def finished(self: Delivery, *arguments: Any) -> None:
        finish_run(self, *arguments)
        if not opened:
            opened.append(Journal.reopen(folder, stage="evaluate", info=RunInfo()))

    def pause(pause_s: float, *_: object, **__: object) -> None:
        if pause_s == mirror.DELIVER_EVERY_S:  # while a stage runs
            finish(*opened)

    monkeypatch.setattr(Delivery, "_finish", finished)
    monkeypatch.setattr(mirror, "pause", pause)
    monkeypatch.setattr(mirror, "Sampler", sampler)
    assert follow(folder) == 0
    assert sampler.return_value.start.call_count == 2


@pytest.mark.parametrize("attempt_s", [0.0, mirror.LAST_ATTEMPTS_S + 1])
def test_a_stage_that_has_ended_waits_for_a_few_attempts_and_for_one_at_a_server_that_hangs(
    server: FakeServer, follow: Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempt_s: float
) -> None:
    times_s = [0.0]

    def time_out(*_: object) -> None:
        times_s.append(times_s[-1] + attempt_s)
        raise TimeoutError

    server.store.run_for.side_effect = time_out
    monkeypatch.setattr(mirror, "time", SimpleNamespace(monotonic=lambda: times_s[-1]))
    monkeypatch.setattr(mirror, "pause", lambda pause_s, *_, **__: times_s.append(times_s[-1] + pause_s))
    assert follow(write_journal(tmp_path)) == 1
    assert server.store.run_for.call_count == (1 if attempt_s else 5)


@pytest.mark.parametrize("is_down", [True, False])
def test_a_journal_that_fails_holds_up_no_other_while_mlflow_answers(server: FakeServer, tmp_path: Path, is_down: bool) -> None:
    folders, server.failing = [write_journal(tmp_path, tag) for tag in "ab"], {"a"}
    server.is_down = is_down
    assert list(mirror.deliveries(folders, server.store)) == ([] if is_down else [False, True])
    assert [is_pending(folder) for folder in folders] == [True, is_down]
    assert not is_down or server.cursor(folders[0]).offsets[EVENTS] == 0


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
