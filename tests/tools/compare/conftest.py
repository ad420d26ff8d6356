"""A checkout with four runs, made once: their models are what these tests compare."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.core import files
from pipeline.core.environment import Environment, Paths
from pipeline.runs.journal import journals
from pipeline.runs.mlflow import mirror
from pipeline.tools.compare.models import ComparedModel, read
from tests import project
from tests.conftest import PLOTS
from tests.repository import GIT, call, repository, variables

RATE = {"optimizer.learning_rate": 0.03}
Compare = Callable[..., list[str]]


@dataclass(frozen=True)
class Checkout:
    """`runs` maps what differs from the first run to the name of the run's journal."""

    folder: Path
    runs: dict[str, str]


def train(folder: Path, changes: dict[str, Any], *stages: str, setting: str = "digits") -> str:
    """Run the stages in the working folder with changed parameters, and return the name of the new run."""
    project.write_params(folder, changes, setting=setting)
    for stage in stages:
        assert main([stage]) == 0
    return journals(folder)[-1].name


def commit(folder: Path, message: str) -> None:
    """Commit the results in the working folder to DVC and git, as after `dvc repro`."""
    call(folder, sys.executable, "-m", "dvc", "commit", "--force", "--quiet")
    call(folder, *GIT, "add", "-A")
    call(folder, *GIT, "commit", "-qm", message)
    call(folder, *GIT, "tag", message)


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Return a checkout with the runs "first", "rate", "data" and "code", the tags "first" and "code", and the experiment "faster".

    The run "code" differs in the learning rate, too. The prepared data is that of all runs but "data".
    One process of the tests makes it; each has a copy.
    """
    common = tmp_path_factory.getbasetemp()
    common = common.parent if "PYTEST_XDIST_WORKER" in os.environ else common
    made, runs = common / "compared", common / "compared.json"
    with files.locked(common / "compared.lock", wait=True):
        if not runs.exists():
            files.write_json(runs, make(made))
    folder = tmp_path_factory.mktemp("compared") / "checkout"
    shutil.copytree(made, folder, symlinks=True)
    return Checkout(folder, json.loads(runs.read_text(encoding="utf-8")))


def make(folder: Path) -> dict[str, str]:
    """Make the checkout, and return its runs."""
    repository(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PIPELINE_DEVICE", "cpu")
        patch.setattr(mirror, "start", lambda *_: None)
        for name in PLOTS:
            patch.setattr(f"pipeline.evaluate.reports.figures.{name}", lambda *_, **__: None)
        runs = {"data": train(folder, {"source.valid": 0.2}, "prepare", "train", "evaluate")}
        runs["first"] = train(folder, {}, "prepare", "train", "evaluate")
        commit(folder, "first")
        runs["rate"] = train(folder, RATE, "train", "evaluate")
        call(folder, sys.executable, "-m", "dvc", "commit", "--force", "--quiet")
        for name, value in (("user.name", "test"), ("user.email", "test@example.org")):
            call(folder, "git", "config", name, value)
        call(folder, sys.executable, "-m", "dvc", "exp", "save", "--quiet", "--name", "faster")
        module = folder / "pipeline/models/mlp.py"
        module.write_text(module.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
        call(folder, *GIT, "commit", "-qam", "edit")
        runs["code"] = train(folder, RATE, "train", "evaluate")
        commit(folder, "code")
    return runs


@pytest.fixture
def working(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> Iterator[Checkout]:
    """Make the checkout the working folder; it must be as before afterwards."""
    monkeypatch.chdir(checkout.folder)
    before = status(checkout.folder)
    yield checkout
    assert status(checkout.folder) == before, "a comparison changes nothing"


def status(folder: Path) -> str:
    command = ["git", "status", "--porcelain", "--untracked-files=all"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, env=variables()).stdout


@pytest.fixture
def changeable(checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    """Return a copy of the checkout that the test may change, as the working folder."""
    folder = tmp_path / "checkout"
    shutil.copytree(checkout.folder, folder, symlinks=True)
    monkeypatch.chdir(folder)
    return Checkout(folder, checkout.runs)


@pytest.fixture
def models(working: Checkout) -> Callable[..., list[ComparedModel]]:
    """Return a function: `models("first", "rate")` returns these models; a name that is no run of the checkout is used as it is."""
    return lambda *names: [read(working.runs.get(name, name), Paths(), Environment.read()) for name in names]


@pytest.fixture
def compare(capsys: pytest.CaptureFixture[str]) -> Compare:
    """Return a function that runs `compare` and returns its lines."""

    def run(*arguments: str) -> list[str]:
        capsys.readouterr()
        assert main(["compare", *arguments]) == 0
        return capsys.readouterr().out.splitlines()

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that runs a command that must be refused, and returns the message."""

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(list(arguments)) == 2
        return capsys.readouterr().err

    return run
