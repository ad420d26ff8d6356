"""The cells of docs/notebook.md run as they stand there."""

import re
from pathlib import Path

import pytest

from tests.imports import TOP
from tests.repository import call, repository


@pytest.mark.slow
def test_the_notebook_of_the_docs_runs_as_it_stands(tmp_path: Path) -> None:
    repository(tmp_path, {"train.steps": None, "train.epochs": 30})
    blocks = re.findall(r"^```python\n(.*?)^```", (TOP / "docs/notebook.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    checks = """
assert result.digest not in {each.digest for each in results} and result.model is result.model
assert result._repr_html_().count("<img ") == len(result.figures) > 2, result
"""
    (tmp_path / "cells.py").write_text("\n".join([*blocks, checks]).replace("\nfit(", "\nassert fit("), encoding="utf-8")
    output = call(tmp_path, "python", "cells.py", PIPELINE_TRACKING_MIRROR="false")
    assert output.count("Stage 'train' is cached") == 1
