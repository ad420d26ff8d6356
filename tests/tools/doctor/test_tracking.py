"""Tracking: servers that refuse, hang, are old or gone, and databases."""

import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest

from pipeline.tools.doctor import tracking
from pipeline.tools.doctor.finding import Context, Finding, ok

MakeContext = Callable[..., Context]
MLFLOW = metadata.version("mlflow")
NOT_ALLOWED = "Invalid Host header - possible DNS rebinding attack detected"


class Answer(NamedTuple):
    """What a server answers: a status for requests to the API, the text with it, and its version. `released` is set at the end."""

    released: threading.Event
    status: int = 200
    text: str = "{}"
    version: str = MLFLOW
    hangs: bool = False


class Handler(BaseHTTPRequestHandler):
    answer: Answer

    def do_GET(self) -> None:
        if self.answer.hangs:
            self.answer.released.wait()
        is_version = self.path == "/version"
        self.send_response(200 if is_version else self.answer.status)
        self.end_headers()
        self.wfile.write((self.answer.version if is_version else self.answer.text).encode())
        self.server.seen.append(self.headers.get("Authorization"))  # type: ignore[attr-defined]

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class Servers:
    def __init__(self) -> None:
        self.released = threading.Event()
        self.running: list[ThreadingHTTPServer] = []

    def start(self, **answer: object) -> str:
        """Start a server on loopback that answers so, and return its address with a user and a password."""
        handler = type("ThisHandler", (Handler,), {"answer": Answer(self.released, **answer)})  # type: ignore[arg-type]
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads, server.seen = True, []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.running.append(server)
        return f"http://user:hunter2@127.0.0.1:{server.server_port}"


@pytest.fixture
def servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    servers.released.set()
    for server in servers.running:
        server.shutdown()
        server.server_close()


def examined(make_context: MakeContext, address: str) -> Finding:
    finding = tracking.tracking(make_context(MLFLOW_TRACKING_URI=address))
    assert "hunter2" not in str(finding)
    return finding


def test_a_server_that_answers_is_told_with_its_version(make_context: MakeContext, servers: Servers) -> None:
    finding = examined(make_context, servers.start())
    assert (finding.status, finding.text.partition(", ")[2]) == ("ok", f"MLflow {MLFLOW}")
    assert servers.running[0].seen == ["Basic dXNlcjpodW50ZXIy"] * 3, "the user and password of the address"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("status", "text", "words", "remedy"),
    [
        (403, NOT_ALLOWED, "it does not allow the host name 127.0.0.1", "mlflow server --allowed-hosts 127.0.0.1"),
        (403, "Permission denied", "it does not permit this user", "MLFLOW_TRACKING_PASSWORD"),
        (401, "You are not authenticated", "it does not permit this user", "MLFLOW_TRACKING_TOKEN"),
        (404, "<html>", "it is no MLflow server", "correct MLFLOW_TRACKING_URI"),
        (503, "Out of order", "answers 503: Out of order", "log of the server"),
    ],
)
def test_a_server_that_refuses_is_told_with_the_reason(
    make_context: MakeContext, servers: Servers, status: int, text: str, words: str, remedy: str
) -> None:
    finding = examined(make_context, servers.start(status=status, text=text))
    assert (finding.status, words in finding.text, remedy in finding.remedy) == ("warning", True, True), finding


def test_a_server_that_hangs_is_left_in_time(make_context: MakeContext, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "LIMIT_S", 0.4)
    finding = examined(make_context, servers.start(hangs=True))
    assert (finding.status, "does not answer within" in finding.text) == ("warning", True)


def test_a_server_that_is_not_there(make_context: MakeContext) -> None:
    finding = examined(make_context, "http://user:hunter2@127.0.0.1:9")
    assert (finding.status, "http://127.0.0.1:9 does not answer (Connection refused)" in finding.text) == ("warning", True)
    assert "`unset MLFLOW_TRACKING_URI`" in finding.remedy


def test_a_proxy_that_does_not_reach_the_server_is_named(make_context: MakeContext, servers: Servers, monkeypatch) -> None:
    """The remedy is run as it is printed."""
    address = servers.start()
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("http_proxy", servers.start(status=502))
    finding = examined(make_context, address)
    assert (finding.status, " answers 502 through the proxy http://127.0.0.1:" in finding.text) == ("warning", True)
    assert finding.remedy.startswith("`export no_proxy=")
    monkeypatch.setenv("http_proxy", "http://user:hunter2@127.0.0.1:9")
    finding = examined(make_context, address)
    assert (finding.status, " does not answer through the proxy http://127.0.0.1:9 (Connection refused)" in finding.text) == (
        "warning",
        True,
    )
    command = finding.remedy.split("`")[1]
    done = subprocess.run(["sh", "-c", f'{command}; echo "$no_proxy"'], capture_output=True, text=True, check=True)
    monkeypatch.setenv("no_proxy", done.stdout.strip())
    assert examined(make_context, address).status == "ok"


@pytest.mark.parametrize(("name", "value"), [("MLFLOW_TRACKING_AUTH", "a plugin"), ("MLFLOW_WORKSPACE", "team")])
def test_nothing_is_claimed_where_only_the_client_of_mlflow_can_ask(make_context, servers: Servers, monkeypatch, name: str, value) -> None:
    monkeypatch.setenv(name, value)
    assert examined(make_context, servers.start(status=401)).text.endswith(", which was not examined")
    assert not servers.running[0].seen  # type: ignore[attr-defined]


def test_a_server_whose_experiment_was_deleted(make_context: MakeContext, servers: Servers) -> None:
    experiment = '{"experiment": {"experiment_id": "7", "name": "pipeline", "lifecycle_stage": "deleted"}}'
    finding = examined(make_context, servers.start(text=experiment))
    assert (finding.status, "the experiment pipeline was deleted" in finding.text) == ("warning", True)
    assert finding.remedy == "`mlflow experiments restore --experiment-id 7`"


@pytest.mark.parametrize(
    ("version", "words"), [("2.9.1", "MLflow 2.9.1 is too old"), ("<html>", "does not report a version"), ("4.0.0rc1", None)]
)
def test_an_old_server_and_one_that_is_not_mlflow(make_context: MakeContext, servers: Servers, version: str, words: str | None) -> None:
    finding = examined(make_context, servers.start(version=version))
    assert (finding.status, (words or "") in finding.text) == ("warning" if words else "ok", True)


def test_no_tracking_and_a_database_that_does_not_exist_yet(make_context: MakeContext, tmp_path: Path) -> None:
    assert tracking.tracking(make_context(PIPELINE_TRACKING="false")).text == "off (PIPELINE_TRACKING)"
    assert tracking.tracking(make_context()).text == f"{tmp_path / 'mlflow.db'}, which the first run will make"
    assert list(tmp_path.iterdir()) == []


def write_store(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE experiments (experiment_id INTEGER, name VARCHAR(256), lifecycle_stage VARCHAR(32))")


def test_the_text_is_that_of_the_installed_mlflow_which_is_not_imported() -> None:
    source = Path(str(metadata.distribution("mlflow").locate_file("mlflow/server/security_utils.py"))).read_text(encoding="utf-8")
    assert f'\nINVALID_HOST_MSG = "{NOT_ALLOWED}"\n' in source


def test_a_file_that_is_no_database(make_context: MakeContext, tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("no database " * 100, encoding="utf-8")
    finding = tracking.tracking(make_context())
    assert (finding.status, "file is not a database" in finding.text) == ("warning", True)
    assert f"`mv {tmp_path / 'mlflow.db'} " in finding.remedy


def test_the_database_of_a_folder_with_characters_of_an_address_is_the_one_that_is_read(make_context: MakeContext, tmp_path: Path) -> None:
    folder = tmp_path / "hash# 100% %41?"
    folder.mkdir()
    write_store(folder / "mlflow.db")
    assert tracking.tracking(make_context(top=folder)) == ok(str(folder / "mlflow.db"))
    assert list(tmp_path.iterdir()) == [folder]


def test_a_database_that_another_process_locks(make_context: MakeContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = tmp_path / "mlflow.db"
    write_store(database)
    monkeypatch.setattr(tracking, "LOCKED_S", 0.1)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        finding = tracking.tracking(make_context())
    assert (finding.status, "database is locked" in finding.text) == ("warning", True)
    assert finding.remedy.startswith(f"`fuser {database}` if a process locks it")


def test_a_database_server_that_is_not_there(make_context: MakeContext) -> None:
    for scheme in ("postgresql", "postgresql+psycopg2"):
        finding = examined(make_context, f"{scheme}://user:hunter2@127.0.0.1:9/runs")
        assert (finding.status, "refused" in finding.text) == ("warning", True), finding


def test_a_database_whose_driver_is_not_installed(make_context: MakeContext) -> None:
    finding = examined(make_context, "mysql+imaginary://user:hunter2@127.0.0.1:9/runs")
    assert (finding.status, "hunter2" in str(finding)) == ("warning", False)
    finding = examined(make_context, "postgresql+pg8000://user:hunter2@127.0.0.1:9/runs")
    assert (finding.status, "needs the package pg8000" in finding.text) == ("warning", True)
