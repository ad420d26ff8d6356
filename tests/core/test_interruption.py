"""The first signal is handled at the next safe moment, the second one ends the process, and DVC never sees exit code 0."""

import os
import signal
import subprocess
import sys

import pytest

from pipeline.__main__ import main
from pipeline.core import interruption
from tests.imports import TOP

SIGNALS = [signal.SIGTERM, signal.SIGINT]
CODE = """
import os, sys, time
from pipeline.core import interruption
with interruption.deferred() as interrupted:
    for number in map(int, sys.argv[1:]):
        os.kill(os.getpid(), number)
        print(interrupted.number, flush=True)
print("done", flush=True)
for number in map(int, os.environ.get("LATER", "").split()):
    os.kill(os.getpid(), number)
    print("lives", flush=True)
"""


def run(*numbers: int, **variables: str) -> tuple[int, list[str]]:
    arguments = [sys.executable, "-c", CODE, *(str(int(number)) for number in numbers)]
    done = subprocess.run(arguments, cwd=TOP, capture_output=True, text=True, check=False, env=os.environ | variables)
    return done.returncode, done.stdout.split()


def test_a_first_signal_only_sets_the_number_and_the_handlers_come_back() -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with interruption.deferred() as interrupted:
        interrupted.pause()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(interruption.Interrupted, match="interrupted by SIGTERM") as caught:
            interrupted.pause()
    assert [signal.getsignal(each) for each in SIGNALS] == before
    assert caught.value.exit_code == 143


def test_where_nothing_can_wait_the_first_signal_raises_and_the_handlers_come_back() -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with pytest.raises(interruption.Interrupted) as caught, interruption.raise_on_signal():
        os.kill(os.getpid(), signal.SIGINT)
    assert [signal.getsignal(each) for each in SIGNALS] == before
    assert caught.value.exit_code == 130


def test_the_end_of_dvc_is_a_first_signal_and_never_a_second() -> None:
    assert run(interruption.UNCOUNTED_STOP) == (0, [str(int(signal.SIGTERM)), "done"])
    assert run(signal.SIGUSR2) == (0, [str(int(signal.SIGINT)), "done"])
    assert run(signal.SIGINT, interruption.UNCOUNTED_STOP) == (0, [str(int(signal.SIGINT))] * 2 + ["done"])


def test_what_torchrun_started_is_not_killed_by_a_second_signal_and_the_end_of_dvc_never_kills() -> None:
    told = str(int(signal.SIGTERM))
    assert run(signal.SIGTERM, signal.SIGTERM, TORCHELASTIC_RUN_ID="1") == (0, [told, told, "done"])
    assert run(signal.SIGTERM, LATER=str(int(signal.SIGUSR2))) == (0, [told, "done", "lives"])


def test_a_signal_that_was_on_its_way_already_is_not_the_second_and_the_next_one_is() -> None:
    told = str(int(signal.SIGTERM))
    assert run(interruption.UNCOUNTED_STOP, signal.SIGTERM) == (0, [told, told, "done"])
    assert run(interruption.UNCOUNTED_STOP, signal.SIGTERM, signal.SIGTERM) == (-signal.SIGTERM, [told, told])


def test_an_interruption_is_no_error_that_a_handler_of_errors_could_swallow() -> None:
    assert not issubclass(interruption.Interrupted, Exception)


def test_a_second_signal_ends_the_process_at_once() -> None:
    for first, second in (SIGNALS, SIGNALS[::-1]):
        assert run(first, second) == (-second, [str(int(first))])


def test_control_c_outside_of_a_training_ends_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pipeline.tools.check.command.run", interrupted)
    assert main(["check"]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


def test_an_interrupted_stage_ends_with_the_code_of_the_signal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        raise interruption.Interrupted(signal.SIGTERM)

    monkeypatch.setattr("pipeline.tools.check.command.run", interrupted)
    assert main(["check"]) == 143
    assert capsys.readouterr().err == "error: interrupted by SIGTERM\n"
