"""What `make repro` trains by default is good: the promise of the README's first line of output."""

import json
import shutil
from pathlib import Path

import pytest

from pipeline.__main__ import main
from tests import project
from tests.imports import TOP


def test_the_default_reaches_98_percent_on_the_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    monkeypatch.chdir(project.make(tmp_path))
    shutil.copy(TOP / "presets/digits.yaml", "params.yaml")
    assert main(["check"]) == main(["prepare"]) == main(["train"]) == main(["evaluate"]) == 0
    assert json.loads(Path("metrics/evaluate.json").read_text())["accuracy"] >= 0.98
