"""Names that MLflow takes, whatever a class is called."""

import posixpath
import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.reports.flatten import flatten


def mlflow_takes(name):
    """What MLflow 3 asks of a metric's name, on Windows too; a test of the tracking asks MLflow itself."""
    return re.fullmatch(r"[/\w.\- ]+", name) and posixpath.normpath(name) == name and len(name) <= 250


def test_levels_become_slashes_and_plain_names_stay():
    nested = {"loss": 0.5, "accuracy_interval": {"low": 0.1, "high": 0.9}, "samples": 3, "per_class": {"cat": {"f1": 1.0}}}
    assert flatten(nested, "test") == {
        "test/loss": 0.5,
        "test/accuracy_interval/low": 0.1,
        "test/accuracy_interval/high": 0.9,
        "test/samples": 3.0,
        "test/per_class/cat/f1": 1.0,
    }


def test_names_that_become_equal_are_told_apart_and_a_plain_one_keeps_its_own():
    classes = {name: {"f1": 0.0} for name in ("a/b", "a(b", "a_b", "a_b 2")}
    assert list(flatten(classes, "test")) == ["test/a_b 3/f1", "test/a_b 4/f1", "test/a_b/f1", "test/a_b 2/f1"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=300), min_size=1, max_size=12, unique=True))
@example(["", ".", "..", "...", " ", "/", "//", "a/../b", "line\n", "$x$", "犬", "a" * 250, "a" * 251])
def test_any_class_name_gives_a_name_of_its_own_that_mlflow_takes(classes):
    metrics = {name: {"precision": number / 10} for number, name in enumerate(classes)}
    flat = flatten({"per_class": metrics}, "test")
    assert list(flat.values()) == [number / 10 for number in range(len(classes))]
    assert all(mlflow_takes(name) for name in flat), list(flat)
