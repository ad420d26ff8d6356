"""torchrun ends with one line and the exit code of its cause."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from pipeline.tools import torchrun
from tests.imports import TOP

SCRIPT = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print("ready", flush=True)
time.sleep(60)
"""


def test_torchrun_says_that_a_signal_has_ended_it_in_one_line_and_by_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline.tools.torchrun", "--standalone", "--nproc-per-node=1", str(tmp_path / "script.py")],
        cwd=TOP,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # torchrun warns where it sets this
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=300)[1]
    assert (process.returncode, said.splitlines()[-1:]) == (143, ["error: interrupted by SIGTERM"]), said
    assert "Traceback" not in said


@pytest.mark.parametrize(("code", "expected", "words"), [(2, 2, "failed with exit code 2"), (-9, 137, "was killed by SIGKILL")])
def test_torchrun_says_which_process_failed(code: int, expected: int, words: str, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_: object) -> None:
        raise ChildFailedError("script", {1: ProcessFailure(1, 1, code, "no file")})

    monkeypatch.setattr(torchrun, "run", fail)
    assert torchrun.main(["script.py"]) == expected
    assert capsys.readouterr().err == f"error: the process of rank 1 {words}\n"
