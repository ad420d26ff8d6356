"""The live line on a terminal: what fits, what is printed meanwhile, and a real training on a pseudo-terminal."""

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.runs.terminal import live_line
from tests import project
from tests.runs.terminal.screen import Screen

FIELDS = ["train: step 48 of 920", "epoch 0.6", "47 s left", "loss 1.7697", "valid/accuracy 0.4579", "1,176 samples/s", "memory 0.84 GB"]
DEADLINE_S = 90.0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that sets the width of the terminal."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    return lambda width: monkeypatch.setenv("COLUMNS", str(width))


def shown(width: int, terminal: Terminal) -> list[str]:
    screen = Screen(width)
    screen.write(terminal.getvalue().replace("\n", "\r\n"))
    assert screen.column == 0, "a process that is killed now leaves its shell a usable line"
    return [row.rstrip() for row in screen.rows]


def test_a_line_shows_the_first_fields_that_fit(columns: Callable[[int], None]) -> None:
    whole = [", ".join(FIELDS[:count]) for count in range(1, len(FIELDS) + 1)]
    fitting = {width: max((text for text in whole if len(text) < width), key=len) for width in (200, 116, 115, 22)}
    for width, text in {**fitting, 10: "train: s…"}.items():
        columns(width)
        terminal = Terminal()
        with live_line(terminal, terminal) as line:
            line.show(FIELDS)
            assert shown(width, terminal) == [text]


def test_what_is_printed_stays_above_the_line() -> None:
    terminal = Terminal()
    with live_line(terminal, terminal) as line:
        print("before the first line")
        line.show(["step 1 of a line that is longer"])
        print("a validation")
        print("a warning", file=sys.stderr)
        assert shown(200, terminal) == ["before the first line", "a validation", "a warning", "step 1 of a line that is longer"]
        line.show(["step 2"])
    assert shown(200, terminal) == ["before the first line", "a validation", "a warning", ""]


def test_what_goes_to_a_pipe_has_no_control_sequence_and_finds_the_line_erased() -> None:
    """Such as with `| tee log`, where another process writes to the same terminal."""
    terminal, pipe = Terminal(), io.StringIO()
    with live_line(pipe, terminal) as line:
        line.show(["step 1"])
        print("a validation")
        assert shown(200, terminal) == [""]
        line.show(["step 2"])
        assert shown(200, terminal) == ["step 2"]
    assert pipe.getvalue() == "a validation\n"


def draws(text: str) -> list[str]:
    """Return the live lines that were drawn."""
    return re.findall(r"\r\x1b\[J\x1b\[2m([^\x1b]*)\x1b\[0m\r", text)


@pytest.mark.slow
def test_a_training_on_a_terminal_is_resized_and_interrupted_and_leaves_the_terminal_sane(tmp_path: Path, monkeypatch) -> None:
    changes = {"train.steps": 200_000, "train.report_every_steps": 50, "train.validate_every_steps": 500}
    monkeypatch.chdir(project.make(tmp_path, changes))
    assert main(["prepare"]) == 0
    master, slave = pty.openpty()
    output = ""

    def resize(width: int) -> None:
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))

    def read_until(done: Callable[[str], bool]) -> str:
        """Read until `done` returns True for what was read by this call, or until the program has ended. Return what was read."""
        nonlocal output
        start, deadline_s = len(output), time.monotonic() + DEADLINE_S
        while not done(output[start:]):
            assert time.monotonic() < deadline_s, output
            if select.select([master], [], [], 1)[0]:
                try:
                    output += os.read(master, 65536).decode()
                except OSError:  # the program has ended
                    break
        return output[start:]

    resize(140)
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "COLUMNS", "NO_COLOR")}
    variables = {**kept, "TERM": "xterm-256color", "PIPELINE_TRACKING": "false"}
    command = [sys.executable, "-m", "pipeline", "train"]
    with subprocess.Popen(command, env=variables, stdin=slave, stdout=slave, stderr=slave, start_new_session=True) as process:
        try:
            os.close(slave)
            wide = read_until(lambda text: len(draws(text)) >= 3 and "valid/accuracy" in draws(text)[-1])
            resize(60)
            read_until(lambda text: len(draws(text)) >= 2)  # one may have begun before
            narrow = read_until(lambda text: len(draws(text)) >= 3 and text.count("train/objective") >= 1)
            process.send_signal(signal.SIGTERM)
            read_until(lambda _: False)
            assert process.wait(timeout=DEADLINE_S) == 128 + signal.SIGTERM
        finally:
            process.kill()
    os.close(master)
    pattern = r"train: step \d+ of 200000, epoch \d+\.\d, .* left, loss \d\.\d+, valid/accuracy \d\.\d+, .* samples/s, memory .*"
    assert re.fullmatch(pattern, draws(wide)[-1])
    assert max(map(len, draws(wide))) > 60 > max(map(len, draws(narrow)))
    screen = Screen(500)
    screen.write(output)
    *rows, saved, error, last = [row.rstrip() for row in screen.rows]
    assert (screen.column, error, last) == (0, "error: interrupted by SIGTERM", "")
    assert re.fullmatch(r"train: step \d+ is saved: the same command continues after it", saved)
    validations = [row for row in rows if "train/objective" in row]
    assert len(validations) >= 2
    scores = r"train/objective [\d.]+, valid/loss [\d.]+, valid/accuracy [\d.]+, valid/macro_f1 [\d.]+"
    assert all(re.fullmatch(rf"train: step \d+ of 200000, epoch [\d.]+: {scores}", row) for row in validations)
    assert not [row for row in rows if "left" in row], "no live line stays"
