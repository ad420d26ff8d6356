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
from pipeline.tracking.terminal import live_line
from tests import project
from tests.tracking.terminal.screen import Screen

FIELDS = ["train: step 48 of 920", "epoch 0.6", "47 s left", "loss 1.7697", "valid/accuracy 0.4579", "1,176 samples/s", "memory 0.84 GB"]
ERASE = "\r\x1b[J"
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
    return [row.rstrip() for row in screen.rows]


@pytest.mark.parametrize("width", [200, 117, 116, 115, 80, 60, 57, 23, 22])
def test_a_line_shows_the_first_fields_that_fit(columns: Callable[[int], None], width: int) -> None:
    columns(width)
    terminal = Terminal()
    with live_line(terminal, terminal) as line:
        line.show(FIELDS)
        whole = [", ".join(FIELDS[:count]) for count in range(1, len(FIELDS) + 1)]
        assert shown(width, terminal) == [max((text for text in whole if len(text) < width), key=len)]


def test_not_even_a_tiny_terminal_is_written_beyond_its_edge(columns: Callable[[int], None]) -> None:
    columns(10)
    terminal = Terminal()
    with live_line(terminal, terminal) as line:
        line.show(FIELDS)
        assert shown(10, terminal) == ["train: s…"]


def test_the_line_is_replaced_by_the_next_and_erased_at_the_end() -> None:
    terminal = Terminal()
    with live_line(terminal, terminal) as line:
        line.show(["a long first line"])
        line.show(["short"])
        assert shown(200, terminal) == ["short"]
    assert shown(200, terminal) == [""]
    assert terminal.getvalue().endswith(ERASE)


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


def test_the_line_is_erased_when_an_exception_ends_the_block() -> None:
    terminal = Terminal()
    with pytest.raises(KeyboardInterrupt), live_line(terminal, terminal) as line:  # noqa: PT012
        line.show(["step 1"])
        raise KeyboardInterrupt
    assert shown(200, terminal) == [""]
    assert not hasattr(sys.stderr, "line")


class Training:
    """`python -m pipeline train` on a pseudo-terminal."""

    def __init__(self, folder: Path, width: int) -> None:
        self.master, slave = pty.openpty()
        self.resize(width)
        kept = {name: value for name, value in os.environ.items() if name not in ("CI", "COLUMNS", "NO_COLOR")}
        variables = {**kept, "TERM": "xterm-256color", "PIPELINE_TRACKING": "false"}
        command = [sys.executable, "-m", "pipeline", "train"]
        self.process = subprocess.Popen(command, cwd=folder, env=variables, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
        os.close(slave)
        self.output = ""

    def resize(self, width: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))

    def read_until(self, done: Callable[[str], bool]) -> str:
        """Read until `done` returns True for what was read by this call, or until the program has ended. Return what was read."""
        start, deadline_s = len(self.output), time.monotonic() + DEADLINE_S
        while not done(self.output[start:]):
            assert time.monotonic() < deadline_s, self.output
            if select.select([self.master], [], [], 1)[0]:
                try:
                    self.output += os.read(self.master, 65536).decode()
                except OSError:  # the program has ended
                    break
        return self.output[start:]


def draws(text: str) -> list[str]:
    """Return the live lines that were drawn."""
    return re.findall(r"\r\x1b\[J\x1b\[2m([^\x1b]*)\x1b\[0m\r", text)


def test_a_training_on_a_terminal_is_resized_and_interrupted_and_leaves_the_terminal_sane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project.make(tmp_path, {"train.steps": 200_000, "train.report_every_steps": 50, "train.validate_every_steps": 500})
    monkeypatch.chdir(folder)
    assert main(["prepare"]) == 0
    training = Training(folder, width=140)
    try:
        wide = training.read_until(lambda text: len(draws(text)) >= 3 and "valid/accuracy" in draws(text)[-1])
        training.resize(60)
        training.read_until(lambda text: len(draws(text)) >= 2)  # one may have begun before
        narrow = training.read_until(lambda text: len(draws(text)) >= 3 and text.count("train/objective") >= 1)
        training.process.send_signal(signal.SIGTERM)
        training.read_until(lambda _: False)
        assert training.process.wait(timeout=DEADLINE_S) == 128 + signal.SIGTERM
    finally:
        training.process.kill()
        training.process.wait()
        os.close(training.master)
    last = draws(wide)[-1]
    assert re.search(
        r"^train: step \d+ of 200000, epoch \d+\.\d, .* left, loss \d\.\d+, valid/accuracy \d\.\d+, .* samples/s, memory ", last
    )
    assert max(map(len, draws(wide))) > 60
    assert {len(line) < 60 for line in draws(narrow)} == {True}
    screen = Screen(500)
    screen.write(training.output)
    rows = [row.rstrip() for row in screen.rows]
    assert screen.column == 0
    assert rows[-1] == ""
    assert rows[-2] == "error: interrupted by SIGTERM"
    assert re.fullmatch(r"train: step \d+ is saved: the same command continues after it", rows[-3])
    validations = [row for row in rows if "train/objective" in row]
    assert len(validations) >= 2
    for row in validations:
        assert re.fullmatch(
            r"train: step \d+ of 200000, epoch [\d.]+: train/objective [\d.]+, valid/loss [\d.]+, valid/accuracy [\d.]+, valid/macro_f1 [\d.]+",
            row,
        )
    assert not [row for row in rows if "left" in row], "no live line stays"
