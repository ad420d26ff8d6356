"""Tables as DVC reads them."""

import csv
from pathlib import Path

import numpy as np
import pytest

from pipeline.core.refusal import Refusal
from pipeline.evaluate.reports import recorded
from pipeline.inference.scores import Calibration


def read(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_confusion_table_has_a_row_a_sample(tmp_path):
    path = tmp_path / "plots" / "confusion.csv"
    classes = ("cat", 'a "dog", wet', "two\nlines")
    recorded.write_confusion(path, targets=np.array([0, 1, 2]), predicted=np.array([0, 2, 1]), classes=classes)
    assert [tuple(row.values()) for row in read(path)] == [("cat", "cat"), (classes[1], classes[2]), (classes[2], classes[1])]
    assert path.read_bytes().startswith(b"actual,predicted\ncat,cat\n")
    assert b"\r" not in path.read_bytes()


def test_the_reliability_table_keeps_every_digit_and_leaves_empty_bins_out(tmp_path):
    path = tmp_path / "reliability.csv"
    calibration = Calibration.of(np.array([0.95, 0.1 + 0.2, 0.85]), np.array([True, False, False]), 5)
    recorded.write_reliability(path, calibration)
    rows = read(path)
    assert list(rows[0]) == ["bin_centre", "confidence", "accuracy", "samples"]
    assert [float(row["confidence"]) for row in rows] == calibration.confidence.tolist()
    assert [row["samples"] for row in rows] == ["1", "2"]


def test_a_missing_table_is_taken_from_git_before_it_is_trained_again(tmp_path: Path) -> None:
    path = tmp_path / "plots/train/history.csv"
    with pytest.raises(Refusal, match=f"{path}: is missing: run `git restore {path.parent}` if it was committed, or `dvc repro -f train`"):
        recorded.read_table(path, "train")
