"""`make repro` runs the DVC beside its Python, and its exit code is that of the stage that failed, although DVC returns 255 for all."""

import json
import os
import signal
from pathlib import Path

import pytest

from pipeline.tools import checkout_lock, repro, supervision
from tests.imports import TOP
from tests.repository import call

IN_STAGE = "python -c 'import os, sys, pipeline.__main__ as verbs; verbs.run = lambda *_: {}; sys.exit(verbs.main([\"train\"]))'"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    call(folder, "dvc", "init", "-q", "--no-scm")
    (folder / ".pipeline").mkdir()
    return folder


def test_after_a_kill_the_screen_says_what_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(repro.check, "run", lambda: None)
    monkeypatch.setattr(repro, "dvc_repro", lambda _: 137)
    assert repro.run() == 137
    assert "repeat `python -m pipeline repro`, which continues a training after its last checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "code"), [(IN_STAGE.format("os.kill(os.getpid(), 9)"), 137), ("false", 255)], ids=["killed", "no stage"]
)
def test_the_exit_code_is_that_of_the_stage_that_failed(command: str, code: int, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # without DVC and without this Python
    monkeypatch.setenv("PYTHONPATH", str(TOP))
    (repository / "dvc.yaml").write_text(json.dumps({"stages": {"train": {"cmd": command}}}), encoding="utf-8")
    (repository / supervision.EXIT_CODE_PATH.format(pid=os.getpid())).write_text("130", encoding="utf-8")  # of a job before
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with checkout_lock.alone(Path()) as lock:
        assert repro.dvc_repro(lock) == code
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
