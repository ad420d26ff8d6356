"""`metrics/evaluate.json`: the scores of a model, and which model they are of."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline import files, foreign
from pipeline.refusal import Refusal

MODEL, DIGITS = "model", 12
"""The key of the first digits of the model file's SHA-256."""
MOST_BYTES = 2**26
"""Scores of some hundred thousand classes."""


def labelled(scores: Mapping[str, Any], model: Path) -> dict[str, Any]:
    """What is written: the scores, and the model file that they are of."""
    return {**scores, MODEL: label(model)}


def label(model: Path) -> str:
    """Raises Refusal for a file that is missing."""
    try:
        return files.digest(model)[:DIGITS]
    except FileNotFoundError:
        raise Refusal(f"{model}: is missing: run `dvc repro`") from None


def read(path: Path) -> tuple[dict[str, Any], str]:
    """Scores and label. Raises Refusal for a file that is missing, or of another program."""
    try:
        found: dict[str, Any] = json.loads(foreign.read(path, MOST_BYTES))
        interval, of = found["accuracy_interval"], str(found.pop(MODEL))
        float(found["accuracy"]), float(interval["low"]), float(interval["high"]), found["samples"]
    except FileNotFoundError:
        raise Refusal(f"{path}: is missing: run `dvc repro`") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise Refusal(f"{path}: was not written by this pipeline, or by an earlier one: run `dvc repro -f evaluate`") from None
    return found, of


def scores(path: Path, model: Path) -> dict[str, Any]:
    """Those of this very model. Raises Refusal where they are of another."""
    found, of = read(path)
    if of != label(model):
        raise Refusal(f"{path}: is of another model than {model}: run `dvc repro`")
    return found
