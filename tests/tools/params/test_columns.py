"""Which columns hold several labels a sample, and what separates them."""

import random
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.core.refusal import Refusal
from pipeline.core.yaml_document import Document
from pipeline.prepare.reading.tables import UnusableRows
from pipeline.tools.params import cell_values, columns, data, images, readings
from pipeline.tools.params.table import CLASSES, REGRESSION, Question, Table, assignment, names_are_first

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
        ([f"{number % 3},{5 + number % 2}" for number in range(60)], None),
        ([" ".join(DRAWN.choices(("good", "bad", "fine", "red"), k=6)) for _ in range(60)], None),
        ([[number, number + 0.5] for number in range(60)], None),
        ([f"a text, of words {number}" for number in range(60)], None),
    ],
)
def test_a_delimiter_is_what_separates_labels_that_recur_alone_and_together(values: list[object], expected: str | None) -> None:
    assert cell_values.delimiter_of(values) == expected


def test_the_columns_of_a_wide_table_are_not_compared_in_pairs() -> None:
    hashed = list[str]()

    class Cell(str):
        __slots__ = ()

        def __hash__(self) -> int:
            hashed.append(self)
            return super().__hash__()

    wide = {str(number): [Cell(number >> row & 1) for row in range(8)] for number in range(1, 128)}
    assert columns.label_columns(Table(wide)) == [*wide]
    assert len(hashed) < 10 * 8 * len(wide)


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


def test_a_column_y_beside_x_and_z_is_a_coordinate() -> None:
    points = {name: [f"{number * factor % 31}.5" for number in range(30)] for name, factor in (("x", 7), ("y", 11), ("price", 13))}
    assert readings.row_values(Path("a.csv"), Table(points), {})["label_column"] == "y"
    for other in (points["y"], [str(number) for number in range(30)]):
        with pytest.raises(Question, match=r"[34] columns may be the one to predict"):
            readings.row_values(Path("a.csv"), Table(points | {"y": other, "z": points["x"]}), {})


def test_whole_numbers_with_gaps_may_be_classes_or_numbers() -> None:
    scores, classes = ([str(number * factor % 90) for number in range(90) for _ in range(4)] for factor in (2, 1))
    with pytest.raises(Question, match=r"45 different whole numbers from 0 to 88: to predict numbers, add source.task=regression; if"):
        columns.labels(Path("a.csv"), Table({"score": scores}), {})
    assert columns.labels(Path("a.csv"), Table({"score": scores}), {"task": "classification"}) == {"label_column": "score"}
    assert columns.labels(Path("a.csv"), Table({"intent": classes}), {}) == {"label_column": "intent"}


def test_the_label_column_of_a_table_of_rows_may_hold_several_labels_a_sample() -> None:
    table, given = Table({"size": [n / 7 for n in range(60)], "tags": [";".join(tags) for tags in LISTS]}), {"label_column": "tags"}
    found = readings.row_values(Path("a.csv"), table, {**given, "task": "multi_label"})
    assert found == {"split_column": None, **given, "task": "multi_label", "label_delimiter": ";"}
    with pytest.raises(Question, match=r"add source.task=multi_label source.label_column=tags; for one class a sample"):
        readings.row_values(Path("a.csv"), table, given)
    assert readings.row_values(Path("a.csv"), table, {"task": "multi_label"}) == found
    longer = [";".join([*tags, "abcdefgh"[n % 8], "ijklmnop"[n // 8]]) for n, tags in enumerate(LISTS)]
    assert readings.row_values(Path("a.csv"), Table({**table.columns, "tags": [], "label": longer}), {})["label_delimiter"] == ";"


@pytest.mark.parametrize("cells", [["0,5", "2,25", "1"], [f"${number * 25}" for number in range(1, 9)]])
def test_a_target_in_another_format_has_numbers_and_not_classes(cells: list[str]) -> None:
    assert readings.task_of(Path("a.csv"), Table({"price": cells}), "price") == REGRESSION
    assert readings.task_of(Path("a.csv"), Table({"grade": [str(1 + number % 3) for number in range(30)]}), "grade") == CLASSES
    with pytest.raises(Question, match=r"60 different whole numbers .*source.task=regression; .*source.task=classification"):
        readings.task_of(Path("a.csv"), Table({"price": [f"${number * 25 % 1500}" for number in range(240)]}), "price")


TEXT_ROWS = [[f"a film, number {number}", ("spam", "ham")[number % 3 > 0]] for number in range(30)]
NUMBER_ROWS = [[f"{number}.5", f"{number * 7 % 30}.25", "ab"[number % 2]] for number in range(30)]
IMAGE_ROWS = [[f"{number}.png", f"{number}.5"] for number in range(30)]


@pytest.mark.parametrize(
    ("first", "found", "given", "expected"),
    [
        (["text", "label"], TEXT_ROWS, {}, True),
        (["a first text, not a name", "spam"], TEXT_ROWS, {}, False),
        (["message", "spam"], TEXT_ROWS, {}, r"add source.label_column=spam if these are names, or source.label_column=2 if not"),
        (["message", "spam", "x"], [[*row, "xy"[at % 2]] for at, row in enumerate(TEXT_ROWS)], {}, False),
        (["spam", "by"], [[label, "xy"[at % 2]] for at, (_, label) in enumerate(TEXT_ROWS)], {}, True),
        (["message", "spam"], TEXT_ROWS, {"label_column": "spam"}, True),
        (["message", "spam"], TEXT_ROWS, {"label_column": 2}, False),
        (["0.5", "0.75", "a"], NUMBER_ROWS, {}, False),
        (["1.5", "2.5"], [row[:2] for row in NUMBER_ROWS], {}, False),
        (["0", "1"], [row[:2] for row in NUMBER_ROWS], {}, True),
        (
            [str(at) for at in range(12)],
            [row[:2] * 6 for row in NUMBER_ROWS],
            {"label_column": 10},
            r'has the names of the columns: write .* \'source.label_column="10"\'',
        ),
        (
            ["size", "kind"],
            [row[1:] for row in NUMBER_ROWS],
            {"label_column": 2},
            r"write the name of the column, source.label_column=kind",
        ),
        (["file", "size"], IMAGE_ROWS, {"image_column": 1}, r"write the name of the column, source.image_column=file"),
        (["x.png", "0.5"], IMAGE_ROWS, {}, False),
        (["x.png", "c"], [[name, "ab"[at % 2]] for at, (name, _) in enumerate(IMAGE_ROWS)], {}, False),
        (["a film", "a film"], [[text, text[::-1]] for text, _ in TEXT_ROWS], {}, False),
        (["abandon", "a b a n d o n"], [[text[:9], " ".join(text[:9])] for text, _ in TEXT_ROWS], {}, False),
        (["NA", "?"], [row[:2] for row in NUMBER_ROWS], {}, True),
        (["a first film", "3.5"], [[text, number] for (text, _), (number, *_) in zip(TEXT_ROWS, NUMBER_ROWS, strict=True)], {}, False),
        (["film", "3.5", "size"], [[text, *row[:2]] for (text, _), row in zip(TEXT_ROWS, NUMBER_ROWS, strict=True)], {}, True),
        (["30", "a film", "2"], [[str(n), f"a film {n}", str(7 * n)] for n in range(30)], {"label_column": 2}, False),
        (["Sales of 2024", "", ""], NUMBER_ROWS, {}, r"a.csv:1: has one cell, Sales of 2024: remove what is above the names"),
    ],
)
def test_the_first_line_has_names_if_its_cells_differ_from_those_below(first: list[str], found: list[list[str]], given, expected) -> None:
    values = list(zip(*found, strict=True))
    if not isinstance(expected, str):
        assert names_are_first(Path("a.csv"), first, values, given) == expected
        return
    with pytest.raises(Refusal, match=expected):
        names_are_first(Path("a.csv"), first, values, given)


WORDS = [f"{one}{two}" for one in ("haus", "baum", "tag", "wald") for two in ("er", "chen", "lein", "tor", "dach", "feld", "mark")]
DATES = [f"2024-{1 + number // 9:02}-{1 + number:02}" for number in range(28)]


@pytest.mark.parametrize(
    ("found", "given", "expected"),
    [
        ({"a": WORDS, "b": [f"{number} USD" for number in range(28)]}, {}, "add source.target_column=a or source.target_column=b for"),
        ({"a": WORDS, "b": DATES}, {}, "add source.target_column=a or source.target_column=b for"),
        ({"id": [*map(str, range(28))], "a": DATES, "b": DATES[::-1]}, {}, "add source.target_column=a or source.target_column=b for"),
        ({"a": WORDS, "b": [f"{number}.5" for number in range(28)]}, {}, None),
        ({"a": WORDS, "b": ["x", "y"] * 14}, {}, None),
        ({"a": WORDS[:14] * 2, "b": WORDS}, {}, "add source.target_column=a or source.target_column=b for"),
        ({"a": [f"the old {word}" for word in WORDS for _ in "ab"], "b": [*WORDS, *DATES]}, {}, "to write those of the column b for them"),
        ({"a": [f"the old {word}" for word in WORDS for _ in "ab"], "b": [*WORDS, *DATES]}, {"label_column": "a"}, None),
        ({"a": WORDS, "b": WORDS[::-1], "form": ["x;y", "x"] * 14}, {}, "2 columns have texts: .* add source.target_column=a or"),
        ({"a": WORDS, "b": WORDS[::-1], "c": WORDS}, {}, "add source.text_column=a source.target_column=b, or other two of a, b, c"),
        (
            {
                "key": [f"{number * 2654435761 + 10**15:016x}" for number in range(28)],
                "a": [f"the old {word} of {word}" for word in WORDS],
                "b": [f"a {word} or two" for word in WORDS],
            },
            {},
            "add source.text_column=a source.target_column=b, or other two of a, b, key",
        ),
        ({"a": WORDS, "kind": ["x", "y"] * 14}, {"target_column": "a"}, "kind"),
        ({"a": WORDS, "b": WORDS[::-1], "kind": ["x", "y"] * 14}, {"target_column": "b"}, "a"),
        ({"kind": ["x", "y"] * 14, "n": ["1", "2"] * 14}, {"name": "text_pairs", "target_column": "n"}, "kind"),
    ],
)
def test_two_columns_of_strings_may_be_pairs_of_texts(found: dict[str, list[str]], given: dict[str, str], expected: str | None) -> None:
    if expected is None or "target_column" in given:
        pair = columns.pair(Path("a.jsonl"), Table(found), given)
        assert pair == (expected and {"text_column": expected, "target_column": given["target_column"], "split_column": None})
        return
    with pytest.raises(Question, match=expected):
        columns.pair(Path("a.jsonl"), Table(found), given)


def test_a_question_asks_for_the_texts_the_column_and_its_task_at_once() -> None:
    numbers = {name: [f"{number * factor % 31}" for number in range(30)] for name, factor in (("size", 7), ("mass", 11), ("age", 13))}
    with pytest.raises(Question) as asked:
        readings.row_values(Path("a.csv"), Table({"about": [row[0] for row in TEXT_ROWS], **numbers}), {})
    kind, label = asked.value.questions
    assert kind.endswith("to train on these, add source=table; on the texts alone, add source=text_classification")
    assert "3 columns may be the one to predict: add source.label_column=age" in label
    assert readings.row_values(Path("a.csv"), Table(numbers), {"label_column": "age", "task": "regression"})


@pytest.mark.parametrize(
    "name", ["kind", 3, "3", "3.7", "1e5", "true", "null", "~", "two words " * 9, "a\tb", "it's", "\u200b\u00e9", "a: b", None]
)
def test_the_word_that_names_a_column_means_it_in_a_shell_and_in_yaml(name: str | int | None) -> None:
    [word] = shlex.split(assignment("label_column", name))
    assert Document.of(word.replace("=", ": ", 1), Path("a")).data == {"source.label_column": name}


@pytest.mark.parametrize("text", ["{} kg", "2024-01-05 10:15:{:02}", "52.{}, 4.3", "555 {:03} 4567", "+49 170 {:03}", "1 234,{}"])
def test_dates_and_numbers_are_no_texts(text: str) -> None:
    assert not cell_values.is_text([text.format(number) for number in range(30)])
    assert not cell_values.are_strings([f"2024-01-05T10:{number:02}:00" for number in range(30)])


def test_numbers_with_words_are_texts_even_if_some_have_units() -> None:
    assert cell_values.is_text([f"{number} kg" if number % 3 == 0 else f"{number} monkeys" for number in range(30)])


def test_the_names_of_columns_may_recur_where_files_were_joined(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    lines = ["text,label", *(f'"{text}",{label}' for text, label in TEXT_ROWS)]
    path.write_text("\n".join(lines * 2))
    table = Table.read(path)
    assert [*table.columns] == ["text", "label"]
    assert {*table.columns["label"]} == {"spam", "ham"}


def test_columns_of_0_and_1_beside_classes_are_no_labels_without_a_question() -> None:
    marks = {name: [number // part % 2 for number in range(30)] for part, name in enumerate("ab", 1)}
    with pytest.raises(Question, match=r"3 columns may hold the labels: add "):
        columns.labels(Path("a.csv"), Table({"kind": ["xyz"[number % 3] for number in range(30)], **marks}), {})


def test_a_column_called_target_that_cannot_be_one_is_not_passed_over() -> None:
    kinds = ["ab"[number % 2] for number in range(30)]
    prices = ["NaN", *("n/a" if number % 9 == 4 else f"{number * 7 % 30}.5" for number in range(1, 30))]
    with pytest.raises(
        Question, match=r"target has 28 different values: correct cells such as n/a; to predict another .*source.label_column=kind"
    ):
        readings.row_values(Path("a.csv"), Table({"kind": kinds, "target": prices}), {})
    scores = Table({"text": [row[0] for row in TEXT_ROWS], "kind": kinds, "label": [f"{number * 7 % 30}.5" for number in range(30)]})
    with pytest.raises(
        Question, match=r"label has numbers with .*: to predict them, add source.task=regression source.label_column=label; to"
    ):
        columns.labels(Path("a.csv"), scores, {}, ["text"])
    texts = Table({**scores.columns, "label": [f"{number},500" for number in range(30)]})
    with pytest.raises(Question, match=r"label has numbers with fractions, such as 0.5: correct cells such as 0,500; to predict another"):
        columns.labels(Path("a.csv"), texts, {}, ["text"])


def test_the_brightest_of_the_darker_images_is_named() -> None:
    brightest = {"dark1": 4000.0, "dark2": 4095.0, "light1": 60_000.0, "light2": 65_535.0}
    with pytest.raises(Question, match="2 images have values up to 4095, such as dark2, and 2 up to 65535, such as light2"):
        images.find_white(Path("a"), brightest, [])


def test_parallel_files_with_fields_in_their_lines_are_no_pairs(tmp_path: Path) -> None:
    for name in ("km.txt", "sw.txt"):
        (tmp_path / name).write_text("".join(f"word{number}\t/w{number}/\n" for number in range(30)))
    with pytest.raises(Refusal, match="has 2 fields with tabs between them in each line: rename such files to"):
        readings.as_text_pairs(tmp_path, {})


def test_names_of_samples_with_the_word_of_a_split_name_no_splits() -> None:
    of_samples = [f"{split}_{number}" for split in ("train", "test") for number in range(20)]
    table = Table({"id": of_samples, "part": [name.partition("_")[0] for name in of_samples]})
    assert [name for name in table.columns if columns.means_splits(table, name)] == ["part"]


def test_unused_files_that_are_called_like_what_is_read_come_first() -> None:
    finding: Any = SimpleNamespace(files={Path("w.train.tsv")}, source={"name": "text_pairs"})
    assert data.left_out(finding, (["a.dev.tsv"], [], ["w.test.gold.tsv"]), {}) == ["not used: w.test.gold.tsv, a.dev.tsv"]


def test_unusable_rows_of_a_table_that_lists_images_are_said_before_questions_about_other_readings() -> None:
    faulty, asked = UnusableRows("line 2: has no label"), Question(Path("a"), "add source=table")
    assert data.nearest(Path("a"), {}, {"table": asked, "image_table": faulty}, {"a.png": "image", "a.csv": "table"}) is faulty
