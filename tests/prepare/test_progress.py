"""Progress: a bar on a terminal, occasional lines elsewhere."""

import io
import sys

import pytest

from pipeline.prepare import progress as module
from pipeline.prepare.progress import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_elsewhere_a_line_comes_every_ten_seconds(capsys, clock):
    with progress("prepare", 100, "images") as advance:
        for second in range(1, 26):
            clock[0] = float(second)
            advance(4)
    assert capsys.readouterr().err == "prepare: 40 of 100 images\nprepare: 80 of 100 images\n"
    assert advance.done == 100


def test_a_short_loop_says_nothing(capsys, clock):
    with progress("prepare", 3, "images") as advance:
        for _ in range(3):
            advance()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("total", [8, 0])
def test_a_terminal_gets_a_bar(monkeypatch, total):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress("prepare", total, "images") as advance:
        advance(8)
    assert "prepare" in terminal.getvalue()
    assert ("8/8" if total else "8/?") in terminal.getvalue()


def test_items_pass_through_and_count_once_dealt_with(clock):
    with progress("prepare", 6, "images") as advance:
        seen = [(item, advance.done) for item in advance.each(iter(["a", "bb", "ccc"]), len)]
    assert seen == [("a", 0), ("bb", 1), ("ccc", 3)]
    assert advance.done == 6
