"""Which columns hold several labels a sample, and what separates them."""

import random
from pathlib import Path

import pytest

from pipeline.core.refusal import Refusal
from pipeline.tools.params import columns, rows
from pipeline.tools.params.columns import Question, Table

TAGS = ("clear", "haze", "road", "water")
DRAWN = random.Random(1)  # no secret
LISTS = [[tag for tag in TAGS if DRAWN.random() < 0.5] for _ in range(60)]
SCALE = ("Extremely Positive", "Positive", "Neutral", "Negative", "Extremely Negative")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        *(([sign.join(tags) for tags in LISTS], sign) for sign in (";", "|", ",", " ")),
        ([", ".join(tags) for tags in LISTS], ","),
        (LISTS, ""),
        ([str(tags) for tags in LISTS], ""),
        ([TAGS[number % 4] for number in range(60)], None),
        ([SCALE[number % 5] for number in range(60)], None),
        ([f"New {name}" for name in ("York", "Jersey", "Delhi") for _ in range(20)], None),
        ([f"{number % 7},{number % 9}" for number in range(60)], None),
        ([" ".join(DRAWN.choices(("good", "bad", "fine", "red"), k=6)) for _ in range(60)], None),
        ([[number, number + 0.5] for number in range(60)], None),
        ([f"a text, of words {number}" for number in range(60)], None),
    ],
)
def test_a_delimiter_is_what_separates_labels_that_recur_alone_and_together(values: list[object], expected: str | None) -> None:
    assert columns.delimiter_of(values) == expected


def test_labels_that_cannot_be_told_apart_are_asked_for() -> None:
    table, given = Table({"tags": ["a;b", "c", "d"], "text": ["x", "y", "z"]}), {"task": "multi_label", "label_column": "tags"}
    with pytest.raises(
        Question, match=r"what separates the labels in the column tags: add 'source.label_delimiter=\";\"' or source.label_delimiter=null"
    ):
        columns.labels(Path("a.csv"), table, given)
    for answer in (";", None):
        assert columns.labels(Path("a.csv"), table, {**given, "label_delimiter": answer})["label_column"] == "tags"
    several = Table({"tags": LISTS, "topics": LISTS, "kind": list("ab") * 30})
    with pytest.raises(Question) as asked:
        columns.labels(Path("a.csv"), several, {})
    assert "add source.task=multi_label source.label_column=tags or source.task=multi_label source.label_column=topics; for one" in str(
        asked.value
    )
    assert "one class a sample, add source.task=classification source.label_column=kind" in str(asked.value)
    marks = Table({name: ["0", "1", "1"] if name < "c" else ["1.5", "2", "3"] for name in "abc"})
    assert columns.labels(Path("a.csv"), marks, {"label_column": ["a", "b"]}) == {"task": "multi_label", "label_column": ["a", "b"]}
    with pytest.raises(Question, match=r"these columns have other values than 0 and 1: to train a regression, add source.task=regression"):
        columns.labels(Path("a.csv"), marks, {"label_column": ["a", "c"]})


def test_a_target_with_decimal_commas_is_refused_and_not_classes() -> None:
    table = Table({"price": ["0,5", "2,25", "1"]})
    with pytest.raises(
        Refusal, match=r"has numbers with a decimal comma in the column price, such as 0,5: write a point, or, .*classification"
    ):
        rows.task(Path("a.csv"), table, "price")
