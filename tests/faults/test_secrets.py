"""No secret in the environment reaches a run, a journal, a log, a model file or an error message."""

import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest

from pipeline.__main__ import main
from tests import project
from tests.faults.servers import Proxy, Server

CANARY = "c4n/ry p%ss"  # other when it is percent-encoded
VARIABLES = {
    "MLFLOW_TRACKING_PASSWORD": f"{CANARY}-1",
    "MLFLOW_TRACKING_TOKEN": f"{CANARY}-2",
    "AWS_SECRET_ACCESS_KEY": f"{CANARY}-3",
    "DVC_STUDIO_TOKEN": f"{CANARY}-4",
}


def leaks(places: list[Path], output: str) -> list[str]:
    found = {
        path.as_posix(): path.read_bytes() for place in places for path in place.rglob("*") if path.is_file() and ".git/" not in str(path)
    }
    found["what was printed"] = output.encode()
    written = {text.encode() for text in (CANARY, quote(CANARY), quote(CANARY, safe=""), CANARY.replace("/", "\\/"))}
    assert len(found) > 20
    return [name for name, content in found.items() if any(text in content for text in written)]


@pytest.mark.filterwarnings("ignore")  # of MLflow about its own libraries, while the model is logged
def test_no_secret_is_written_or_said(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Train and evaluate while the server is down, then deliver the runs."""
    folder = project.make(tmp_path / "project")
    monkeypatch.chdir(folder)
    secret = quote(CANARY, safe="")
    for arguments in (["init", "-q"], ["remote", "add", "origin", f"https://someone:{secret}@git.example/a.git"], ["add", "params.yaml"]):
        subprocess.run(["git", *arguments], check=True)
    proxy = Proxy(server.port, "refusing")
    address = proxy.address.replace("//", f"//someone:{secret}@")
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    assert [run("prepare", address, monkeypatch), run("train", address, monkeypatch)] == [0, 0]
    assert run("evaluate", address, monkeypatch, wait_s=0) == 0
    output = "".join(capfd.readouterr())
    assert "events of run" in output
    assert "attempt 1" in next(folder.glob(".pipeline/journal/*/mirror.log")).read_text()
    assert leaks([folder], output) == []
    proxy.heal()
    assert run("sync", address, monkeypatch) == 0
    output = "".join(capfd.readouterr())
    assert ": delivered" in output
    assert leaks([folder, server.folder], output) == []
    assert "MLmodel" in {path.name for path in (server.folder / "artifacts").rglob("*")}
    proxy.close()


def run(verb: str, address: str, monkeypatch: pytest.MonkeyPatch, wait_s: int = 60) -> int:
    """Run a verb with the address in the environment, from which tracking removes it each time."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "someone")
    monkeypatch.setenv("PIPELINE_TRACKING_WAIT_S", str(wait_s))
    return main([verb])
