"""Servers that misbehave: no step is slowed, no end is held for long, and in the end MLflow has each run once and whole."""

import json
import os
import signal
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest

from pipeline.core.environment import Environment
from pipeline.tracking import journal, mirror
from pipeline.tracking.events import EVENTS, Cursor, is_pending, read_stores
from tests.faults import comparison
from tests.faults.fork_server import FaultServer, is_alive
from tests.faults.servers import Fault, Proxy, Server
from tests.faults.stage import HELD, TIMES
from tests.tracking import tiny

if TYPE_CHECKING:
    from mlflow import MlflowClient

NUM_STEPS = 300
FAULTS = get_args(Fault)
WITH_MODEL = ("well", "cutting")


@dataclass(frozen=True)
class Disturbed:
    proxy: Proxy
    root: Path
    reports_s: float
    end_s: float

    @property
    def folder(self) -> Path:
        (folder,) = journal.journals(self.root)
        return folder


def begin(fork_server: FaultServer, root: Path, address: str, first: int = 1, last: int = NUM_STEPS) -> int:
    return fork_server.fork("stage", {"DVC_ROOT": str(root), "MLFLOW_TRACKING_URI": address}, first=first, last=last)


def await_end(pid: int) -> None:
    for _ in range(1200):
        if not is_alive(pid):
            return
        time.sleep(0.05)
    raise AssertionError("the stage does not end")


def sync(root: Path, address: str) -> int:
    return mirror.sync(Environment.model_validate({"DVC_ROOT": root, "MLFLOW_TRACKING_URI": address}), tiny.build)


@pytest.fixture(scope="module")
def disturbed(fork_server: FaultServer, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Fault, Disturbed]]:
    """One stage for each fault, all at the same time; the servers are well again once all have ended."""
    top = tmp_path_factory.mktemp("disturbed")
    proxies: dict[Fault, Proxy] = {fault: Proxy(server.port, fault) for fault in FAULTS}
    roots = {fault: top / fault.replace(" ", "-") for fault in FAULTS}
    for fault, root in roots.items():
        root.mkdir()
        if fault in WITH_MODEL:
            tiny.write(root / "model.safetensors")
    for pid in [begin(fork_server, root, proxies[fault].address) for fault, root in roots.items()]:
        await_end(pid)
    for fault, proxy in proxies.items():
        if fault != "cutting":  # it cuts the first answer of every endpoint, and so heals by being asked
            proxy.heal()
    yield {fault: Disturbed(proxies[fault], root, **json.loads((root / TIMES).read_bytes())) for fault, root in roots.items()}
    for proxy in proxies.values():
        proxy.close()


@pytest.fixture(scope="module")
def client(server: Server) -> "MlflowClient":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow warns about its own libraries while it is imported
        from mlflow import MlflowClient, pyfunc

        assert pyfunc.load_model  # it is imported when it is first touched

    return MlflowClient(server.address)


def test_no_server_slows_a_step_or_holds_an_end_for_long(disturbed: dict[Fault, Disturbed]) -> None:
    for fault, each in disturbed.items():
        print(f"{fault}: reports {each.reports_s:.3f} s, end {each.end_s:.1f} s")
        assert each.reports_s < 2, fault
        assert each.end_s < 60, fault


def test_what_a_server_did_not_take_is_still_to_be_delivered(disturbed: dict[Fault, Disturbed]) -> None:
    assert {fault: is_pending(each.folder) for fault, each in disturbed.items() if fault not in ("flaky", "cutting")} == {
        "well": False,
        "refusing": True,
        "erring": True,
        "hanging": True,
        "one artifact": True,
    }


def test_one_event_that_always_fails_holds_up_none_behind_it(disturbed: dict[Fault, Disturbed], client: "MlflowClient") -> None:
    found = comparison.only_run(client, disturbed["one artifact"].folder.name)
    assert (found.info.status, found.data.tags["mlflow.note.content"]) == ("FINISHED", "green")
    assert found.data.tags["pipeline.delayed"].startswith("artifact: ")
    assert [item.path for item in client.list_artifacts(found.info.run_id, "plots")] == ["plots/history.csv"]


@pytest.mark.parametrize("fault", FAULTS)
def test_once_the_server_is_well_the_run_is_that_of_an_undisturbed_one(
    disturbed: dict[Fault, Disturbed], client: "MlflowClient", tmp_path: Path, fault: Fault
) -> None:
    each, undisturbed = disturbed[fault], disturbed["well"]
    attempts = 1 if fault != "cutting" else 40
    assert any(sync(each.root, each.proxy.address) == 0 for _ in range(attempts))
    assert not is_pending(each.folder)
    found = comparison.held(client, each.folder.name, tmp_path)
    assert found.points == comparison.journalled(each.folder)
    wanted = comparison.held(client, undisturbed.folder.name, tmp_path / "wanted") if fault != "well" else found
    points, rest = wanted.without_times
    if fault not in WITH_MODEL:
        rest = {
            **rest,
            "models": [],
            "tied": 0,
            "tags": {name: text for name, text in rest["tags"].items() if name != "pipeline.model_sha256"},
        }
    assert found.without_times == (points, rest)
    assert rest["status"] == "FINISHED"
    assert len(rest["artifacts"]) == 2


def test_what_mlflow_has_is_not_held_twice(disturbed: dict[Fault, Disturbed]) -> None:
    folder = disturbed["well"].folder
    assert {path.name for path in folder.iterdir() if path.suffix != ".lock"} == {
        "events.jsonl",
        "system.jsonl",
        "delivered.json",
        "mirror.log",
        "model.sha256",
    }


def test_a_server_that_is_killed_and_a_stage_that_is_killed_leave_one_whole_run(
    fork_server: FaultServer, server: Server, client: "MlflowClient", tmp_path: Path
) -> None:
    (tmp_path / HELD).touch()
    first = begin(fork_server, tmp_path, server.address, 1, 200)
    await_delivery(tmp_path, 1)
    (folder,) = journal.journals(tmp_path)
    assert comparison.only_run(client, folder.name).info.status == "RUNNING"
    server.kill()
    os.kill(first, signal.SIGKILL)
    server.start()
    while sync(tmp_path, server.address):  # the mirror of the killed stage has not noticed yet
        time.sleep(0.2)
    assert comparison.only_run(client, folder.name).info.status == "KILLED"
    second = begin(fork_server, tmp_path, server.address, 101, 250)
    await_delivery(tmp_path, folder.joinpath("events.jsonl").stat().st_size)
    assert comparison.only_run(client, folder.name).info.status == "RUNNING"
    server.kill()
    (tmp_path / HELD).unlink()
    time.sleep(1)
    server.start()
    await_end(second)
    assert sync(tmp_path, server.address) == 0
    found = comparison.held(client, folder.name, tmp_path / "found")
    assert found.points == comparison.journalled(folder)
    for name in ("train/loss", "train/scale", "valid/loss"):
        assert [point[1] for point in found.points if point[0] == name] == list(range(1, 251))
    assert found.rest["status"] == "FINISHED"


def await_delivery(root: Path, offset: int) -> None:
    for _ in range(1200):
        for folder in journal.journals(root):
            if any(Cursor.load(folder, store).offsets[EVENTS] > offset for store in read_stores(folder)):
                return
        time.sleep(0.05)
    raise AssertionError("nothing is delivered")
