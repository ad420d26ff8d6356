"""The exit code of `make repro` tells an interruption from a failure, although DVC returns 255 for both."""

import sys
from pathlib import Path

import pytest

from pipeline.commands import repro
from tests.imports import TOP
from tests.repository import call

STAGE = "stages:\n  train:\n    cmd: python -c 'from pipeline.runtime.interruption import record_exit_code; {told}; raise SystemExit(1)'\n"


@pytest.mark.parametrize(("told", "code"), [("record_exit_code(143)", 143), ("0", 255)])
def test_an_interrupted_stage_is_told_from_a_failed_one(told: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.prefix, "bin")), prepend=":")
    monkeypatch.setenv("PYTHONPATH", str(TOP))
    call(tmp_path, "dvc", "init", "-q", "--no-scm")
    (tmp_path / "dvc.yaml").write_text(STAGE.format(told=told), encoding="utf-8")
    (tmp_path / ".pipeline").mkdir()
    (tmp_path / repro.EXIT_CODE_PATH).write_text("130", encoding="utf-8")  # of a job before
    assert repro.dvc_repro() == code
