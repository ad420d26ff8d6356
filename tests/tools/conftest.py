"""Fixtures: a project with parameters that a test changes, and the errors of a verb."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.__main__ import main
from tests import project
from tests.imports import TOP
from tests.tools.parameters import Parameters

SCREEN_LINES, LONGEST_LINE = 24, 400


@pytest.fixture
def parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parameters:
    """Return the digits preset as `params.yaml` of a new project, which becomes the working directory."""
    project.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    parameters = Parameters((TOP / "presets/digits.yaml").read_text(encoding="utf-8"))
    parameters.write()
    return parameters


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Return a function: `refused("check")` returns the errors of a verb, which must exit with `code`, by default 2, and without a traceback."""

    def run(*arguments: str, code: int = 2) -> list[str]:
        capsys.readouterr()
        assert main(arguments) == code
        said = capsys.readouterr().err
        lines = said.splitlines()
        assert lines, "a refusal, and no word why"
        assert "Traceback" not in said
        assert len(lines) <= SCREEN_LINES
        assert all(line.startswith("error: ") and len(line) <= LONGEST_LINE for line in lines), said
        return [line.removeprefix("error: ") for line in lines]

    return run
