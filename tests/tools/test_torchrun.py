"""torchrun ends with one line and the exit code of its cause."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.imports import TOP

SCRIPT = """
import signal, sys, time
if sys.argv[1:]:
    sys.exit(int(sys.argv[1]))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [([], 143, "error: interrupted by SIGTERM"), (["2"], 2, "error: the process of rank 0 failed with exit code 2")],
)
def test_torchrun_says_why_it_ended_in_one_line_and_by_its_exit_code(tmp_path: Path, arguments: list[str], code: int, line: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    with (tmp_path / "stderr").open("w", encoding="utf-8") as stderr:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "pipeline.tools.torchrun",
                "--standalone",
                "--nproc-per-node=1",
                str(tmp_path / "script.py"),
                *arguments,
            ],
            cwd=TOP,
            env={**os.environ, "OMP_NUM_THREADS": "1"},  # torchrun warns where it sets this
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert process.stdout
    if not arguments:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    said = (tmp_path / "stderr").read_text(encoding="utf-8")
    assert (process.returncode, said.splitlines()[-1:]) == (code, [line]), said
    assert "Traceback" not in said
