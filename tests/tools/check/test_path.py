"""Checkout paths that SQLite's URI, DVC or PATH cannot hold are refused."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.core.environment import Environment
from tests import project
from tests.imports import TOP
from tests.repository import variables

Refused = Callable[..., list[str]]


def enter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    project.make(folder)
    monkeypatch.chdir(folder)


@pytest.mark.parametrize(("name", "address"), [("what?", ""), ("100%", "sqlite:///runs.db")])
def test_a_path_that_the_address_of_the_store_cannot_hold_is_refused(refused, tmp_path, monkeypatch, name: str, address: str) -> None:
    enter(tmp_path / name, monkeypatch)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    [message] = refused("check")
    assert "`?` or `%`" in message
    assert "move the checkout" in message


@pytest.mark.parametrize(("variable", "value"), [("PIPELINE_TRACKING", "false"), ("MLFLOW_TRACKING_URI", "sqlite:////tmp/runs.db")])
def test_a_store_elsewhere_does_not_mind_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    enter(tmp_path / "what?", monkeypatch)
    monkeypatch.setenv(variable, value)
    Environment.read()


@pytest.mark.parametrize("name", ["a{b", "a}b"])
def test_a_curly_brace_with_which_dvc_fails_after_a_stage_is_refused(refused: Refused, tmp_path: Path, monkeypatch, name: str) -> None:
    enter(tmp_path / name, monkeypatch)
    [message] = refused("check")
    assert "curly brace" in message


@pytest.mark.parametrize("name", ["data", "models"])
def test_a_link_to_a_folder_outside_is_refused_in_a_git_repository(refused: Refused, tmp_path: Path, monkeypatch, name: str) -> None:
    enter(tmp_path / "checkout", monkeypatch)
    Path(".git").mkdir()
    (tmp_path / "large").mkdir()
    if Path(name).exists():
        Path(name).rename(tmp_path / "large/before")
    Path(name).symlink_to(tmp_path / "large")
    assert any(f"{name} is a link to {tmp_path / 'large'}, and DVC refuses results outside" in message for message in refused("check"))


def test_make_refuses_a_colon_which_path_cannot_hold(tmp_path: Path) -> None:
    folder = tmp_path / "one:two"
    folder.mkdir()
    (folder / "Makefile").write_bytes((TOP / "Makefile").read_bytes())
    done = subprocess.run(
        ["make", "--no-print-directory", "-o", ".venv/.locked", "repro"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=variables(),
    )
    assert done.returncode == 2
    assert "one:two: this path has a colon" in done.stderr
    assert done.stdout == ""
