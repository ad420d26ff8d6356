"""A first signal is noted and answered at a good moment, a second one ends the process, and DVC never sees exit code 0."""

import os
import signal
import subprocess
import sys

import pytest

from pipeline import interruption
from pipeline.__main__ import main
from tests.imports import TOP

SIGNALS = [signal.SIGTERM, signal.SIGINT]
CODE = """
import os, sys, time
from pipeline import interruption
with interruption.deferred() as interrupted:
    for number in map(int, sys.argv[1:]):
        os.kill(os.getpid(), number)
        print(interrupted.number, flush=True)
print("done", flush=True)
"""


def run(*numbers: int) -> tuple[int, list[str]]:
    arguments = [sys.executable, "-c", CODE, *(str(int(number)) for number in numbers)]
    done = subprocess.run(arguments, cwd=TOP, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.split()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_first_signal_only_sets_the_number_and_the_handlers_come_back(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with interruption.deferred() as interrupted:
        assert not interrupted.arrived
        os.kill(os.getpid(), number)
        assert interrupted.arrived
    assert [signal.getsignal(each) for each in SIGNALS] == before
    assert interrupted.exception.exit_code == 128 + number
    assert str(interrupted.exception) == f"interrupted by {number.name}"


@pytest.mark.parametrize("first", SIGNALS)
@pytest.mark.parametrize("second", SIGNALS)
def test_a_second_signal_ends_the_process_at_once(first: signal.Signals, second: signal.Signals) -> None:
    assert run(first) == (0, [str(int(first)), "done"])
    assert run(first, second) == (-second, [str(int(first))])


@pytest.mark.parametrize(
    ("error", "code", "words"), [(signal.SIGTERM, 143, "interrupted by SIGTERM"), (signal.SIGINT, 130, "interrupted by SIGINT")]
)
def test_an_interrupted_stage_ends_with_the_code_of_the_signal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: signal.Signals, code: int, words: str
) -> None:
    def interrupted() -> None:
        raise interruption.Interrupted(error)

    monkeypatch.setattr("pipeline.commands.check.run", interrupted)
    assert main(["check"]) == code
    assert capsys.readouterr().err == f"error: {words}\n"


def test_control_c_outside_of_a_training_ends_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pipeline.commands.check.run", interrupted)
    assert main(["check"]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"
