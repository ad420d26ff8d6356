"""Writes and reads what the stages record: `metrics/evaluate.json`, the CSV tables for `dvc plots`, the training history, and the table of
predictions, `predictions/test.parquet`, with a row for each sample of the test split, in the order of the split.

The model's label is the first digits of its file's SHA-256.
"""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core import files, untrusted
from pipeline.core.raw_dataset import TEST
from pipeline.core.refusal import Refusal, counted, rounded
from pipeline.evaluate.reports.metrics import Integers, SampleScores
from pipeline.inference.scores import Calibration

if TYPE_CHECKING:
    import pyarrow as pa

Row = Mapping[str, Any]
"""A row of the training history. Its values may be text or numbers."""
MODEL, DIGITS = "model", 12
"""The key of the model's label, and the length of the label, which is the first hexadecimal digits of the model file's SHA-256."""
HEADLINES = ("perplexity", "accuracy", "rmse", "r2", "average_precision", "loss")
"""The scores that may be the main score of a task, as `main_score` chooses it."""
PARTS = {"per_class": "class", "per_label": "label"}
"""The scores of the parts of a task, by the name of a part."""
POSITIVE = "positive_class"
"""The key of the name of the class that further scores of two classes are measured of."""
LONGEST_CLASS = 40
SCORES = ("loss", "correct", "num_targets")
"""The columns of every task, but `correct` for numbers. The sum of `correct` divided by that of `num_targets` is the accuracy; that of `loss`, the
loss."""


def label(model: Path) -> str:
    """Return the label of a model file: the first digits of its SHA-256. Raises Refusal if the file is missing."""
    try:
        return files.digest(model)[:DIGITS]
    except FileNotFoundError:
        raise Refusal(f"{model}: is missing: run `dvc repro`") from None


def read(path: Path) -> tuple[dict[str, Any], str]:
    """Return the scores in the file at `path` (`metrics/evaluate.json`), and the label of the model file that was scored.

    Raises Refusal if the file at `path` is missing or unreadable, or does not have the format of this version of the pipeline.
    """
    try:
        content = json.loads(path.read_bytes())
        found: dict[str, Any] = content[TEST]
        result_line(found)  # raises if a score that the line shows is missing
        of = str(content[MODEL])
    except FileNotFoundError:
        raise Refusal(f"{path}: is missing: run `dvc repro`") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, StopIteration):
        raise Refusal(f"{path}: was not written by this version of the pipeline: run `dvc repro -f evaluate`") from None
    return found, of


def scores(path: Path, model: Path) -> dict[str, Any]:
    """Return the scores in the file at `path` (`metrics/evaluate.json`). Check that they are the scores of the model file `model`.

    Raises Refusal if they are the scores of another model file, or if `model` is missing. Also raises Refusal if the file at `path` is
    missing or unreadable, or does not have the format of this version of the pipeline.
    """
    found, of = read(path)
    if of != label(model):
        raise Refusal(f"{path}: has the scores of another model, not those of {model}: run `dvc repro`")
    return found


def trained(path: Path, step: int) -> dict[str, Any] | None:
    """Return the content of `metrics/train.json`; None if it is missing, or if its model was exported after another step than `step`."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and content.get("exported_step") == step else None


BASELINES = {
    "majority_class_accuracy": "always guessing the most frequent class",
    "random_average_precision": "at random",
    "mean_guess_rmse": "always guessing the mean",
    **dict.fromkeys(("linear_accuracy", "linear_rmse", "linear_r2"), "a linear model"),
}
"""Scores of guesses and of simple models, each with the words for its origin, which stand beside the score of the model."""


def result_line(scores: Mapping[str, Any]) -> str:
    """Return a line for the user with the main score and the number of samples, such as `test loss 0.1234 on 500 samples`.

    It ends with what `beside` returns. If `scores` has a confidence interval of the main score, the line shows the interval too.
    """
    name = main_score(scores)
    interval = scores.get(f"{name}_interval")
    between = f" (between {rounded(interval['low'])} and {rounded(interval['high'])})" if interval else ""
    others = "".join(f"; {what}: {value}" for what, value in beside(scores))
    return f"test {name} {rounded(scores[name])}{between} on {counted(scores['samples'], 'sample')}{others}"


def main_score(scores: Mapping[str, Any]) -> str:
    """Return the name of the main score: the first of HEADLINES that `scores` has or, of written texts, their exact matches."""
    return "exact_match" if "chrf" in scores else next(name for name in HEADLINES if name in scores)


def beside(scores: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what the main score may hide, as names and values: the chrF of texts, the scores of guesses, and the lowest F1 of a class."""
    found = [("chrF", f"{scores['chrf']:.2f}")] if "chrf" in scores else []
    found += [(what, rounded(scores[name])) for name, what in BASELINES.items() if name in scores]
    if POSITIVE in scores:
        found.append(("positive class", untrusted.shown(scores[POSITIVE], LONGEST_CLASS)))
    for name, lowest in ranked(scores)[:1]:
        found.append(("lowest F1", f"{rounded(lowest['f1'])} ({PARTS[str(parts(scores))]} {untrusted.shown(name, LONGEST_CLASS)})"))
    return found


def ranked(scores: Mapping[str, Any]) -> list[tuple[str, Mapping[str, float]]]:
    """Return the scores of each class or label, the lowest F1 first, and those without samples last; [] if the task has none."""
    return sorted(scores.get(parts(scores) or "", {}).items(), key=lambda part: (not part[1].get("support", 1), part[1]["f1"]))


def parts(scores: Mapping[str, Any]) -> str | None:
    """Return the key of PARTS that `scores` has; None if it has none."""
    return next((key for key in PARTS if key in scores), None)


def read_table(path: Path, stage: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file that `stage` wrote, with cells as text. Raises Refusal if the file is missing or cannot be parsed."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error) as error:
        remedy = f"run `git restore {path.parent}` if it was committed, or `dvc repro -f {stage}`"
        raise Refusal(f"{path}: cannot be read ({untrusted.reason(error)}): {remedy}") from None


def metrics_at(step: int, rows: Iterable[Mapping[str, str]], *splits: str) -> dict[str, float]:
    """Return the metrics of the splits, by names such as "valid/loss", in the row of the history after `step`; {} if there is none.

    For the step of the exported weights, these are the metrics of the model.
    """
    found = next((row for row in rows if row.get("step") == str(step)), {})
    return {name: float(cell) for name, cell in found.items() if cell and str(name).partition("/")[0] in splits}


def write_confusion(path: Path, *, targets: Integers, predicted: Integers, classes: Sequence[str]) -> None:
    """Write one row per sample with the actual and the predicted class. `dvc plots` counts the rows to draw the confusion matrix."""
    pairs = zip(targets.tolist(), predicted.tolist(), strict=True)
    write(path, ("actual", "predicted"), ((classes[actual], classes[answer]) for actual, answer in pairs))


def write_reliability(path: Path, calibration: Calibration) -> None:
    """Write one row for each bin of the calibration. Empty bins have no row, because they have no confidence or accuracy."""
    columns = (calibration.centres, calibration.confidence, calibration.accuracy, calibration.samples)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    write(path, ("bin_centre", "confidence", "accuracy", "samples"), rows)


def write(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file atomically, with numbers at full precision."""
    files.write_text(path, files.as_csv(header, rows))


def predictions_table(scores: SampleScores, keys: Sequence[str] | None) -> "pa.Table":
    """Return the predictions with the place of each sample in the source (`key`), or without `key` if `keys` is None."""
    import pyarrow as pa  # late: it takes 0.2 s

    columns = {**scores.answers, **{name: column for name in SCORES if (column := getattr(scores, name)) is not None}}
    if keys is not None:
        columns = {"key": [untrusted.storable(key) for key in keys], **columns}
    return pa.table(columns)


def write_predictions(path: Path, predictions: "pa.Table") -> None:
    """Write the table of predictions atomically. Equal tables give equal bytes."""
    from pyarrow import parquet

    with files.replacing(path) as draft, draft.open("wb") as file:
        parquet.write_table(predictions, file)
