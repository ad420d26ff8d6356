"""What a delivery does with events that MLflow hangs on, without MLflow and without waiting."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from pipeline.runtime.environment import Environment
from pipeline.tracking import delivery, events, mirror
from pipeline.tracking.address import Address
from pipeline.tracking.cursor import Cursor, is_pending
from pipeline.tracking.delivery import Delivery
from pipeline.tracking.journal import Journal
from pipeline.tracking.run_info import RunInfo
from pipeline.tracking.store import Store
from tests.tracking import tiny

REQUEST_S = 10.0


class Clock:
    """In place of the module `time`."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Server:
    """Takes every event but those of a tag in `hanging`, on which a request is given up."""

    def __init__(self, environment: Environment) -> None:
        self.clock = Clock()
        self.hanging: set[str] = set()
        self.taken: list[str] = []
        self.store: Any = MagicMock(Store, address=Address.of(environment), client=MagicMock())
        self.store.run_for.return_value.info.run_id = "a run"

    def sender(self, *_: object) -> SimpleNamespace:
        return SimpleNamespace(send=self.send, tag=lambda _: None)

    def send(self, batch: list[events.Event]) -> None:
        for event in batch:
            if self.hanging & set(event.fields.get("tags", ())):
                self.clock.sleep(REQUEST_S)
                raise TimeoutError
            self.taken.append(event.kind)

    def delivery(self, folder: Path) -> Delivery:
        return Delivery(folder, self.store, tiny.build)

    def cursor(self, folder: Path) -> Cursor:
        return Cursor.load(folder, self.store.address.key)


@pytest.fixture
def server(alone: Environment, monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server(alone)
    monkeypatch.setattr(delivery, "time", server.clock)
    monkeypatch.setattr(delivery, "Sender", server.sender)
    monkeypatch.setattr(delivery, "is_passing", lambda error: isinstance(error, OSError))
    return server


def written(root: Path, *tags: str, ended: bool = True) -> Path:
    writing = Journal.create(root, stage="train", info=RunInfo())
    for tag in tags:
        writing.tags({tag: ""})
    if ended:
        writing.end("FINISHED")
    writing.close()
    return writing.folder


def test_an_event_that_hangs_is_set_aside_before_patience_ends(server: Server, tmp_path: Path) -> None:
    folder, server.hanging = written(tmp_path, "a", "b"), {"a"}
    start, hanging, *_ = events.read(folder / events.EVENTS)
    with pytest.raises(TimeoutError, match="32 s went by"):
        server.delivery(folder).catch_up()
    assert (server.cursor(folder).offset, server.cursor(folder).redo) == (hanging.end, start.end)
    server.delivery(folder).catch_up()  # in another process
    assert server.taken == ["start", "tags", "end"]


def test_two_events_that_hang_for_good_hold_up_none_behind_them(server: Server, tmp_path: Path) -> None:
    folder, server.hanging = written(tmp_path, "a", "b", "c"), {"a", "b"}
    for _ in range(3):
        try:
            server.delivery(folder).catch_up()
        except TimeoutError:
            continue
    assert server.taken == ["start", "tags", "end"]
    assert is_pending(folder)
    server.hanging.clear()
    server.delivery(folder).close()
    assert server.taken == ["start", "tags", "end", "tags", "tags", "tags", "end"]
    assert not is_pending(folder)


def test_a_killed_run_is_said_to_be_killed_although_an_event_of_it_hangs(server: Server, tmp_path: Path) -> None:
    folder, server.hanging = written(tmp_path, "a", ended=False), {"a"}
    for _ in range(2):
        with pytest.raises(TimeoutError):
            mirror.deliver(folder, server.store, tiny.build)
    assert server.cursor(folder).status == "KILLED"


@pytest.mark.parametrize("damage", ["values", "step", "time_ms"])
def test_a_damaged_line_holds_up_none_behind_it(server: Server, tmp_path: Path, damage: str) -> None:
    writing = Journal.create(tmp_path, stage="train", info=RunInfo())
    writing.metrics(1, {"a": 1.0})
    writing.end("FINISHED")
    writing.close()
    path = writing.folder / events.EVENTS
    first, metrics, end = path.read_text().splitlines(keepends=True)
    path.write_text(first + metrics.replace(damage, "x" * len(damage)) + end)
    mirror.deliver(writing.folder, server.store, tiny.build)
    assert server.taken == ["start", "unreadable", "end"]
    assert not is_pending(writing.folder)


@pytest.mark.parametrize("answers", [True, False])
def test_leftovers_go_on_behind_one_that_fails_while_mlflow_answers(server: Server, tmp_path: Path, answers: bool) -> None:
    first, second = written(tmp_path, "a"), written(tmp_path, "b")
    server.hanging, server.store.answers.return_value = {"a"}, answers
    for _ in mirror.leftovers(server.store, tiny.build, but=tmp_path):
        pass
    assert (is_pending(first), is_pending(second)) == (True, not answers)
