"""What `make repro` trains by default is good: the promise of the README's first line of output."""

import json
from pathlib import Path


def test_the_default_reaches_98_percent_on_the_digits(default_run: Path) -> None:
    assert json.loads((default_run / "metrics/evaluate.json").read_text())["test"]["accuracy"] >= 0.98
