"""Reads `metrics/evaluate.json` and the training history, which the stages wrote. The model's label is the first digits of its file's
SHA-256.
"""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.io import files, untrusted
from pipeline.raw_dataset import TEST
from pipeline.refusal import Refusal

MODEL, DIGITS = "model", 12
"""The key of the model's label, and the length of the label, which is the first hexadecimal digits of the model file's SHA-256."""
HEADLINES = ("perplexity", "accuracy", "loss")
"""The scores that the result line may show; it shows the first that exists."""
MOST_BYTES = 2**26
"""Upper bound for `metrics/evaluate.json`: enough for the scores of some hundred thousand classes."""


def labelled(scores: Mapping[str, Any], model: Path) -> dict[str, Any]:
    """Return the contents of `metrics/evaluate.json`: the scores and the label of the model file.

    The scores have the key `test`, so that DVC shows them as `test.accuracy` and so on.
    """
    return {TEST: scores, MODEL: label(model)}


def label(model: Path) -> str:
    """Return the label of a model file: the first digits of its SHA-256. Raises Refusal if the file is missing."""
    try:
        return files.digest(model)[:DIGITS]
    except FileNotFoundError:
        raise Refusal(f"{model}: is missing: run `dvc repro`") from None


def read(path: Path) -> tuple[dict[str, Any], str]:
    """Return the scores in `metrics/evaluate.json` (`path`), and the label of the model that has these scores.

    Raises Refusal if the file is missing or unreadable, or was not written by this version of the pipeline.
    """
    try:
        content = json.loads(untrusted.read(path, MOST_BYTES))
        found: dict[str, Any] = content[TEST]
        result_line(found)  # raises if a score that the line shows is missing
        of = str(content[MODEL])
    except FileNotFoundError:
        raise Refusal(f"{path}: is missing: run `dvc repro`") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, StopIteration):
        raise Refusal(f"{path}: was not written by this version of the pipeline: run `dvc repro -f evaluate`") from None
    return found, of


def scores(path: Path, model: Path) -> dict[str, Any]:
    """Return the scores in `metrics/evaluate.json` (`path`), which must be those of the model file `model`.

    Raises Refusal if they are the scores of another model, if `model` is missing, or if `read` raises it.
    """
    found, of = read(path)
    if of != label(model):
        raise Refusal(f"{path}: has the scores of another model than {model}: run `dvc repro`")
    return found


def result_line(scores: Mapping[str, Any]) -> str:
    """Return a line with the main score (the accuracy, or else the loss), its confidence interval if it has one, and the number of samples."""
    name = next(name for name in HEADLINES if name in scores)
    interval = scores.get(f"{name}_interval")
    between = f" (between {interval['low']:.4f} and {interval['high']:.4f})" if interval else ""
    return f"test {name} {scores[name]:.4f}{between} on {scores['samples']} samples"


def read_history(path: Path) -> list[dict[str, str]]:
    """Return the rows of `plots/train/history.csv`, with cells as text. Raises Refusal if the file is missing or cannot be parsed."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error) as error:
        raise Refusal(f"{path}: cannot be read ({error}): run `dvc repro -f train`") from None
