"""`tests.gpu.measure`: which steps run, in which environment, and what the table says of them. No step needs a GPU here."""

import re
import sys
from pathlib import Path

import pytest

from tests.gpu import measure
from tests.gpu.measure import Step
from tests.imports import TOP


def test_the_table_is_written_after_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last_row = Step("last row", ("tail", "-n", "1", str(tmp_path / "table.md")))
    chosen = [Step("passing tests", ("echo", "3 passed in 1s\nbye")), last_row, Step("slow", ("sleep", "60")), Step("left out", ("true",))]
    monkeypatch.setattr(measure, "steps", lambda *_: iter(chosen))
    monkeypatch.setattr(sys, "argv", ["measure", "tests", "--output", str(tmp_path), "--limit-s", "2"])
    assert measure.main() == 1
    table = re.sub(r"\b\d+ \|", "# |", (tmp_path / "table.md").read_text())
    assert table.splitlines()[2:] == [
        "| passing tests | ok | # | 3 passed in 1s |",
        "| last row | ok | # | | passing tests | ok | # | 3 passed in 1s | |",
        "| slow | timed out | # |  |",
        "| left out | not begun | | |",
    ]
    assert (tmp_path / "passing-tests.log").read_text() == "3 passed in 1s\nbye\n"


def test_every_file_of_gpu_tests_is_run() -> None:
    assert {path.relative_to(TOP).as_posix() for path in (TOP / "tests/gpu").glob("test_*.py")} <= set(measure.TESTS)
