"""The process that runs DVC, in a container or as `repro`, with a small DVC and a small stage: signals, order of ending and exit codes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.forking import is_alive, wait_until
from tests.imports import TOP

FIRST = """
import os, sys
from pathlib import Path
from pipeline.tools import supervision
code = supervision.run_all([words.split() for words in sys.argv[1].split(";")], os.environ, top=Path.cwd())
print("code", code, flush=True)
sys.exit(code)
"""
# like DVC: waits for the stage with SIGINT ignored, and exits with 255 for any failed stage
DVC = f"""#!{sys.executable}
import signal, subprocess, sys, time
if sys.argv[1] == "between":
    print("between", flush=True)
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        print("dvc ends", flush=True)
        sys.exit(252)
stage = subprocess.Popen([sys.executable, "stage", *sys.argv[1:]])
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.exit(255 if stage.wait() else 0)
"""
STAGE = """
import sys, time
from pipeline.core import interruption
if sys.argv[1] == "late":
    print("starting", flush=True)
    time.sleep(0.8)
try:
    with interruption.raise_on_signal():
        print("ready", flush=True)
        if sys.argv[1] == "quick":
            sys.exit(int(sys.argv[2]))
        time.sleep(60)
except interruption.Interrupted as interrupted:
    time.sleep(0.8)  # it saves; a signal that arrives meanwhile must not count as the second one
    print("saved", interrupted, flush=True)
    interruption.record_exit_code(interrupted.exit_code)
    sys.exit(interrupted.exit_code)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("first.py", FIRST), ("stage", STAGE), ("dvc", DVC)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "dvc").chmod(0o755)
    return tmp_path


def start(folder: Path, commands: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "first.py", commands],
        cwd=folder,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(TOP)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout
    assert line in iter(process.stdout.readline, ""), f"ended before it printed {line}"


def end(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=300)
    wait_until(lambda: not is_alive(-process.pid), 30)  # no process outlives the first one
    return output


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("send", [os.killpg, os.kill], ids=["group", "first process"])
def test_a_signal_to_the_group_or_to_the_first_process_alone_lets_the_stage_save_once(folder: Path, send, number: int, code: int) -> None:
    process = start(folder, "dvc run;true")
    wait_for(process, "ready\n")
    send(process.pid, number)
    assert end(process) == f"saved interrupted by {signal.Signals(number).name}\ncode {code}\n"


def test_a_stage_that_was_just_starting_receives_the_signal_later(folder: Path) -> None:
    process = start(folder, "dvc late")
    wait_for(process, "starting\n")
    os.killpg(process.pid, signal.SIGTERM)
    assert end(process) in ("saved interrupted by SIGTERM\ncode 143\n", "ready\nsaved interrupted by SIGTERM\ncode 143\n")


def test_between_two_stages_dvc_itself_ends(folder: Path) -> None:
    process = start(folder, "dvc between")
    wait_for(process, "between\n")
    os.killpg(process.pid, signal.SIGTERM)
    assert end(process) == "dvc ends\ncode 143\n"


def stage_of(process: subprocess.Popen[str]) -> psutil.Process:
    (stage,) = [child for child in psutil.Process(process.pid).children(recursive=True) if child.cmdline()[-2:] == ["stage", "run"]]
    return stage


def test_two_jobs_in_one_checkout_return_the_exit_codes_of_their_own_stages(folder: Path) -> None:
    stopped, failed = start(folder, "dvc run"), start(folder, "dvc run")
    for process in (stopped, failed):
        wait_for(process, "ready\n")
    stopped.send_signal(signal.SIGSTOP)  # what its stage records is then still there when the other job ends
    stage = stage_of(stopped)
    stage.send_signal(signal.SIGTERM)
    stage.wait(300)
    stage_of(failed).kill()  # it records nothing
    assert end(failed) == "code 255\n"
    stopped.send_signal(signal.SIGCONT)
    assert end(stopped) == "saved interrupted by SIGTERM\ncode 143\n"
    assert list((folder / ".pipeline").iterdir()) == []


@pytest.mark.parametrize(("commands", "code"), [("dvc quick 0;true", "0"), ("dvc quick 2;true", "255")])
def test_without_a_signal_the_exit_code_is_that_of_the_command(folder: Path, commands: str, code: str) -> None:
    assert end(start(folder, commands)).endswith(f"code {code}\n")


@pytest.mark.parametrize("to_all", [True, False])
def test_other_commands_end_by_the_signal_themselves(folder: Path, to_all: bool) -> None:
    (folder / "wait").write_text(f"import time\nprint('ready', flush=True)\ntime.sleep({60 if to_all else 1})\n", encoding="utf-8")
    process = start(folder, f"{sys.executable} wait;true")
    wait_for(process, "ready\n")
    (os.killpg if to_all else os.kill)(process.pid, signal.SIGTERM)
    assert end(process) == "code 143\n"
