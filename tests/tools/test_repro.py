"""`make repro` runs the DVC beside its Python, and its exit code is that of the stage that failed, although DVC returns 255 for all."""

import json
import os
import signal
from pathlib import Path

import pytest

from pipeline.tools import repro, supervision
from tests.imports import TOP
from tests.repository import call

IN_STAGE = "python -c 'import os, sys, pipeline.__main__ as verbs; verbs.run = lambda *_: {}; sys.exit(verbs.main([\"train\"]))'"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (IN_STAGE.format("0"), 0),
        (IN_STAGE.format("143"), 143),
        (IN_STAGE.format("os.kill(os.getpid(), 9)"), 137),
        (IN_STAGE.format("1 / 0"), 1),
        ("python -m pipeline prepare", 2),  # there is no params.yaml
        ("false", 255),
    ],
)
def test_the_exit_code_is_that_of_the_stage_that_failed(command: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # without DVC and without this Python
    monkeypatch.setenv("PYTHONPATH", str(TOP))
    call(tmp_path, "dvc", "init", "-q", "--no-scm")
    (tmp_path / "dvc.yaml").write_text(json.dumps({"stages": {"train": {"cmd": command}}}), encoding="utf-8")
    (tmp_path / ".pipeline").mkdir()
    (tmp_path / supervision.EXIT_CODE_PATH.format(pid=os.getpid())).write_text("130", encoding="utf-8")  # of a job before
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert repro.dvc_repro() == code
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
