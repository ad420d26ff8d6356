"""Reads and composes `metrics/evaluate.json`: the scores, and a label that identifies the model."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.io import files, untrusted
from pipeline.raw_dataset import TEST
from pipeline.refusal import Refusal

MODEL, DIGITS = "model", 12
"""The key of the model's label, and its length: the first hexadecimal digits of the model file's SHA-256."""
MOST_BYTES = 2**26
"""Upper bound for the file: enough for the scores of some hundred thousand classes."""


def labelled(scores: Mapping[str, Any], model: Path) -> dict[str, Any]:
    """Return the contents of the file: the scores under the name of their split (DVC shows `test.accuracy`), and the model's label."""
    return {TEST: scores, MODEL: label(model)}


def label(model: Path) -> str:
    """Return the label of a model file. Raises Refusal where it is missing."""
    try:
        return files.digest(model)[:DIGITS]
    except FileNotFoundError:
        raise Refusal(f"{model}: is missing: run `dvc repro`") from None


def read(path: Path) -> tuple[dict[str, Any], str]:
    """Return the scores and the model's label. Raises Refusal for a file that is missing or was not written by this pipeline."""
    try:
        content = json.loads(untrusted.read(path, MOST_BYTES))
        found: dict[str, Any] = content[TEST]
        result_line(found)  # raises where a score that the line shows is missing
        of = str(content[MODEL])
    except FileNotFoundError:
        raise Refusal(f"{path}: is missing: run `dvc repro`") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise Refusal(f"{path}: was not written by this pipeline, or by an earlier one: run `dvc repro -f evaluate`") from None
    return found, of


def scores(path: Path, model: Path) -> dict[str, Any]:
    """Return the scores in `path`. Raises Refusal where they belong to a model other than `model`."""
    found, of = read(path)
    if of != label(model):
        raise Refusal(f"{path}: is of another model than {model}: run `dvc repro`")
    return found


def result_line(scores: Mapping[str, Any]) -> str:
    """Format the test accuracy, its interval and the number of samples as one line for the terminal."""
    low, high = scores["accuracy_interval"]["low"], scores["accuracy_interval"]["high"]
    return f"test accuracy {scores['accuracy']:.4f} (between {low:.4f} and {high:.4f}) on {scores['samples']} samples"
