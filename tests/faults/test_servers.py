"""Servers that misbehave: no step is slowed, no end is held for long, and in the end MLflow has each run once and whole, without secrets."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args
from urllib.parse import quote

import pytest

from pipeline.__main__ import main
from pipeline.core.environment import Environment
from pipeline.runs import journal
from pipeline.runs.events import EVENTS, Cursor, is_pending, read_stores
from pipeline.runs.mlflow import mirror
from tests import project
from tests.faults import comparison
from tests.faults.fork_server import FaultServer
from tests.faults.servers import Fault, Proxy, Server
from tests.faults.stage import HELD, TIMES
from tests.forking import is_alive, wait_until
from tests.runs import tiny
from tests.runs.conftest import opened

if TYPE_CHECKING:
    from mlflow import MlflowClient

NUM_STEPS = 300
FAULTS: dict[str, tuple[Fault, ...]] = {"some": ("well", "hanging", "one artifact"), "every": get_args(Fault)}
WITH_MODEL = ("well", "one artifact", "cutting")
CANARY = "c4n/ry p%ss"  # other when it is percent-encoded
SECRETS = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "AWS_SECRET_ACCESS_KEY", "DVC_STUDIO_TOKEN")


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


def sync(root: Path, address: str) -> int:
    return mirror.sync(Environment.model_validate({"DVC_ROOT": root, "MLFLOW_TRACKING_URI": address}))


@pytest.fixture(scope="module", params=["some", pytest.param("every", marks=pytest.mark.slow)])
def disturbed(request, fork_server: FaultServer, server: Server, tmp_path_factory) -> Iterator[dict[Fault, Disturbed]]:
    """One stage for each fault: first the one whose server is well, undisturbed, then all others at the same time, and at last every server
    is well again.
    """
    top = tmp_path_factory.mktemp("disturbed")
    proxies: dict[Fault, Proxy] = {fault: Proxy(server.port, fault) for fault in FAULTS[request.param]}
    roots = {fault: top / fault.replace(" ", "-") for fault in proxies}
    for fault, root in roots.items():
        root.mkdir()
        if fault in WITH_MODEL:
            tiny.write(root / "model.safetensors")
    for together in (["well"], [fault for fault in proxies if fault != "well"]):
        pids = [begin(fork_server, roots[fault], proxies[fault].address) for fault in together]
        wait_until(lambda pids=pids: not any(map(is_alive, pids)), 120)
    for fault, proxy in proxies.items():
        if fault != "cutting":  # it cuts the first answer of every endpoint, and so heals by being asked
            proxy.heal()
    yield {fault: Disturbed(proxies[fault], root, **json.loads((root / TIMES).read_bytes())) for fault, root in roots.items()}
    for proxy in proxies.values():
        proxy.close()


@pytest.fixture(scope="module")
def client(server: Server) -> "MlflowClient":
    return opened(Environment.model_validate({"MLFLOW_TRACKING_URI": server.address}))


def test_no_server_slows_a_step_or_holds_an_end_for_long(disturbed: dict[Fault, Disturbed]) -> None:
    for fault, each in disturbed.items():
        print(f"{fault}: reports {each.reports_s:.3f} s, end {each.end_s:.1f} s")
        assert each.reports_s < 2, fault
        assert each.end_s < 60, fault


def test_what_a_server_did_not_take_is_still_to_be_delivered(disturbed: dict[Fault, Disturbed]) -> None:
    for fault, each in disturbed.items():
        assert fault in ("flaky", "cutting") or is_pending(each.folder) == (fault != "well"), fault


def test_one_file_that_always_fails_ends_the_delivery_before_it_and_is_named(disturbed: dict[Fault, Disturbed], client) -> None:
    folder = disturbed["one artifact"].folder
    found = comparison.only_run(client, folder.name)
    assert (found.info.status, found.data.tags["mlflow.note.content"]) == ("RUNNING", "blue")
    assert "failed: artifact plots/spoiled.txt: " in mirror.last_error(folder)


def test_once_the_server_is_well_the_run_is_that_of_an_undisturbed_one(
    disturbed: dict[Fault, Disturbed], client: "MlflowClient", tmp_path: Path
) -> None:
    wanted = comparison.held(client, disturbed["well"].folder.name, tmp_path / "wanted")
    points, whole = wanted.without_times
    without_model = {
        **whole,
        "models": [],
        "tied": 0,
        "tags": {name: text for name, text in whole["tags"].items() if name != "pipeline.model_sha256"},
    }
    assert whole["status"] == "FINISHED"
    assert len(whole["artifacts"]) == 3
    for fault, each in disturbed.items():
        attempts = 1 if fault != "cutting" else 40
        assert any(sync(each.root, each.proxy.address) == 0 for _ in range(attempts)), fault
        assert not is_pending(each.folder), fault
        found = comparison.held(client, each.folder.name, tmp_path / fault)
        assert found.points == comparison.journalled(each.folder), fault
        assert found.without_times == (points, whole if fault in WITH_MODEL else without_model), fault


def test_a_server_that_is_killed_and_a_stage_that_is_killed_leave_one_whole_run(fork_server, server, client, tmp_path) -> None:
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
    wait_until(lambda: not is_alive(second))
    assert sync(tmp_path, server.address) == 0
    found = comparison.held(client, folder.name, tmp_path / "found")
    assert found.points == comparison.journalled(folder)
    for name in ("train/loss", "train/scale", "valid/loss"):
        assert [point[1] for point in found.points if point[0] == name] == list(range(1, 251))
    assert found.rest["status"] == "FINISHED"


def await_delivery(root: Path, offset: int) -> None:
    def offsets() -> Iterator[int]:
        for folder in journal.journals(root):
            yield from (Cursor.load(folder, store).offsets[EVENTS] for store in read_stores(folder))

    wait_until(lambda: any(each > offset for each in offsets()))


def leaks(places: list[Path], output: str) -> list[str]:
    found = {
        path.as_posix(): path.read_bytes() for place in places for path in place.rglob("*") if path.is_file() and ".git/" not in str(path)
    }
    found["what was printed"] = output.encode()
    written = {text.encode() for text in (CANARY, quote(CANARY), quote(CANARY, safe=""), CANARY.replace("/", "\\/"))}
    assert len(found) > 20
    return [name for name, content in found.items() if any(text in content for text in written)]


@pytest.mark.usefixtures("unplotted")
@pytest.mark.filterwarnings("ignore")  # of MLflow about its own libraries, while the model is logged
def test_no_secret_is_written_or_said(tmp_path: Path, server: Server, monkeypatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Train, with a mirror, and evaluate while the server is down, then deliver the runs."""
    folder = project.make(tmp_path / "project")
    monkeypatch.chdir(folder)
    secret = quote(CANARY, safe="")
    for arguments in (["init", "-q"], ["remote", "add", "origin", f"https://someone:{secret}@git.example/a.git"], ["add", "params.yaml"]):
        subprocess.run(["git", *arguments], check=True)
    proxy = Proxy(server.port, "refusing")

    def run(verb: str, **variables: str) -> int:
        """Run a verb with the address in the environment, from which tracking removes it each time."""
        address = {"MLFLOW_TRACKING_URI": proxy.address.replace("//", f"//someone:{secret}@"), "MLFLOW_TRACKING_USERNAME": "someone"}
        values = {name: f"{CANARY}-{number}" for number, name in enumerate(SECRETS)}
        for name, value in {**address, **values, "PIPELINE_TRACKING_WAIT_S": "60", **variables}.items():
            monkeypatch.setenv(name, value)
        return main([verb])

    without = {"PIPELINE_TRACKING_MIRROR": "false"}
    assert [run("prepare", **without), run("train", PIPELINE_TRACKING_MIRROR="true"), run("evaluate", **without)] == [0, 0, 0]
    output = "".join(capfd.readouterr())
    assert "is not completely in MLflow yet" in output
    assert "attempt 1" in next(folder.glob(".pipeline/journal/*/mirror.log")).read_text()
    assert leaks([folder], output) == []
    proxy.heal()
    assert run("sync") == 0
    output = "".join(capfd.readouterr())
    assert ": delivered" in output
    assert leaks([folder, server.folder], output) == []
    assert "MLmodel" in {path.name for path in (server.folder / "artifacts").rglob("*")}
    proxy.close()
