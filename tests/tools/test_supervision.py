"""The processes that run DVC, a stage or torchrun: signals, order of ending and exit codes. DVC and the stage are small ones."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from pipeline.core.interruption import Interrupted
from pipeline.tools import stages, torchrun
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


@pytest.mark.usefixtures("parameters")
def test_a_signal_during_an_import_that_discards_exceptions_still_stops_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    completed = []

    def discard_exceptions(name: str) -> ModuleType:
        if name == "pipeline.prepare.stage":
            with suppress(BaseException):  # as torch's C code does where it imports numpy
                os.kill(os.getpid(), signal.SIGTERM)
                completed.append(name)
        return import_module(name)

    monkeypatch.setattr(stages, "import_module", discard_exceptions)
    monkeypatch.setattr("pipeline.prepare.stage.prepare", lambda *_, **__: None)
    with pytest.raises(Interrupted, match="SIGTERM"):
        stages.run("prepare")
    assert completed, "an import that a signal interrupts leaves half a module"


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

    monkeypatch.setattr("torch.distributed.run.run", fail)
    assert torchrun.main(["script.py"]) == expected
    assert capsys.readouterr().err == f"error: the process of rank 1 {words}\n"
