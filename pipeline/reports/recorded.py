"""`metrics/evaluate.json`, as the stage evaluate wrote it."""

import json
from pathlib import Path
from typing import Any

from pipeline import foreign
from pipeline.refusal import Refusal

MOST_BYTES = 2**26
"""Scores of some hundred thousand classes."""


def scores(path: Path) -> dict[str, Any]:
    """Raises Refusal for a file that is missing, or of another program."""
    try:
        found: dict[str, Any] = json.loads(foreign.read(path, MOST_BYTES))
        interval = found["accuracy_interval"]
        float(found["accuracy"]), float(interval["low"]), float(interval["high"]), found["samples"]
    except FileNotFoundError:
        raise Refusal(f"{path}: is missing: run `dvc repro`") from None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        raise Refusal(f"{path}: was not written by this pipeline: run `dvc repro -f evaluate`") from None
    return found
