"""`python -m pipeline ui`: MLflow's own server with the page that opens the comparison, on loopback."""

import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.runs.mlflow import comparison_view
from pipeline.tools import ui
from tests.forking import free_port
from tests.imports import TOP

START_S = 300


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "mlflow.db"


@pytest.fixture(scope="module")
def served(store: Path) -> Iterator[str]:
    """Start the command with a new store and yield the address that it prints."""
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{store}", "DVC_ROOT": str(store.parent)}
    command = [sys.executable, "-m", "pipeline", "ui", "--port", str(free_port())]
    with subprocess.Popen(command, cwd=TOP, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            printed = process.stdout.readline()
            yield printed.split()[2]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(START_S)


def fetch(address: str, host: str | None = None) -> str:
    request = urllib.request.Request(address, headers={"Host": host} if host else {})  # noqa: S310  # loopback, from this test
    with urllib.request.urlopen(request, timeout=START_S) as answer:  # noqa: S310
        return str(answer.read().decode())


def test_the_ui_opens_at_the_comparison_and_refuses_other_hosts(served: str) -> None:
    page = fetch(served)
    assert re.search(r'const states = \{"\d+": ', page)
    assert "metrics.`valid/accuracy`" in page
    origin = served.removesuffix("/compare")
    assert '<div id="root"' in fetch(origin)
    with pytest.raises(urllib.error.HTTPError, match="403"):
        fetch(served, host="elsewhere.example")


def test_a_server_of_somebody_else_is_named_with_the_shared_view(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@127.0.0.1:5000/")
    monkeypatch.setattr(ui, "opened", lambda *_: "7")
    assert main(["ui"]) == 0
    told = capsys.readouterr().out
    assert told == ("compare runs: http://127.0.0.1:5000/#/experiments/7/runs?workflowType=machine_learning&viewStateShareKey=comparison\n")


def test_a_number_that_is_no_port_is_refused(refused: Callable[..., list[str]]) -> None:
    assert refused("ui", "--port", "80000") == ["--port 80000: is no port: write a number from 1 to 65535"]


def test_a_server_that_is_away_is_refused_without_its_secrets(monkeypatch: pytest.MonkeyPatch, refused: Callable[..., list[str]]) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://secret@127.0.0.1:{free_port()}")
    (told,) = refused("ui")
    assert "does not answer" in told
    assert "secret" not in told


def test_a_view_in_another_form_opens_the_shared_view_instead(served: str, store: Path) -> None:
    def replace(value: str) -> None:
        with contextlib.closing(sqlite3.connect(store)) as connection, connection:
            changed = connection.execute("UPDATE experiment_tags SET value = ? WHERE key = ?", [value, comparison_view.VIEW_TAG])
            assert changed.rowcount == 1

    assert "localStorage" in fetch(served)
    with contextlib.closing(sqlite3.connect(store)) as connection:
        ((view,),) = connection.execute("SELECT value FROM experiment_tags WHERE key = ?", [comparison_view.VIEW_TAG])
    replace("of another form")
    assert "localStorage" not in fetch(served)
    replace(view)
