"""Several labels a sample: the forms in which tables have them, and what is refused with its line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from pipeline.core.raw_dataset import TRAIN
from pipeline.core.refusal import Refusal
from pipeline.core.tasks.multi_label import LabelTargets
from pipeline.prepare import split
from pipeline.prepare.reading import labelled_tables, tables
from pipeline.prepare.reading.labels import ClassLabels, Labelled
from pipeline.prepare.reading.tables import Columns
from pipeline.sources.text_classification import Settings
from tests.sources.test_text_classification import WORD

TEXTS = ("a red sky", "rain", "fog at night", "snow")
LABELS = (["dog", "sun"], [], ["night"], ["dog", "night"])
NAMES = ("dog", "night", "sun")
MARKS = [[int(name in labels) for name in NAMES] for labels in LABELS]


def read(path: Path, **changes: Any) -> Labelled:
    keys = {"label_column": "labels", "label_delimiter": None, "positive_class": None, **changes}
    section = {"name": "text_classification", "root": str(path), "task": "multi_label", "text_column": "text", **WORD, **keys}
    recommended = Settings.recommended(name="text_classification", task="multi_label")
    settings = Settings.model_validate_json(json.dumps({**recommended, **section}, default=str))
    columns = Columns(settings.label_columns, "text")
    return labelled_tables.read({TRAIN: [path]}, columns, settings.labels, path, "utf-8", skip_empty=False)


def table(path: Path, cells: Any, header: str = "labels") -> Path:
    lines = [f"text\t{header}", *(f"{text}\t{cell}" for text, cell in zip(TEXTS, cells, strict=True))]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_all_forms_give_the_same_targets(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        "\n".join(json.dumps({"text": text, "labels": labels}) for text, labels in zip(TEXTS, LABELS, strict=True)), encoding="utf-8"
    )
    pq.write_table(pa.table({"text": TEXTS, "labels": LABELS}), tmp_path / "a.parquet")
    numbered = pa.table({"text": TEXTS, "labels": [[NAMES.index(label) for label in labels] for labels in LABELS]})
    features = {"info": {"features": {"labels": {"feature": {"names": NAMES, "_type": "ClassLabel"}, "_type": "List"}}}}
    pq.write_table(numbered.replace_schema_metadata({"huggingface": json.dumps(features)}), tmp_path / "b.parquet")
    found = [
        read(table(tmp_path / "a.tsv", map(";".join, LABELS)), label_delimiter=";"),
        read(table(tmp_path / "b.tsv", map(", ".join, LABELS)), label_delimiter=","),
        read(table(tmp_path / "c.tsv", map(json.dumps, LABELS))),
        read(table(tmp_path / "d.tsv", map(str, LABELS))),
        read(table(tmp_path / "e.tsv", ["\t".join(map(str, marks)) for marks in MARKS], "\t".join(NAMES)), label_column=NAMES),
        read(table(tmp_path / "f.tsv", ["\t".join(("no", "True")[mark] for mark in marks) for marks in MARKS], "\t".join(NAMES)), label_column=NAMES),
        *(read(tmp_path / name) for name in ("a.jsonl", "a.parquet", "b.parquet")),
    ]  # fmt: skip
    for labelled in found:
        assert labelled.task == LabelTargets(labels=NAMES)
        assert labelled.targets[TRAIN].dtype == np.uint8
        assert labelled.targets[TRAIN].tolist() == MARKS


def test_what_is_no_label_is_refused_with_its_line(tmp_path: Path) -> None:
    marks = table(tmp_path / "a.tsv", ["0\t1", "-1\t0", "1\t1", "maybe\t0"], "dog\tnight")
    with pytest.raises(
        Refusal, match='line 3: has "-1" in the column dog: write 1 if the sample has this label, else 0; line 5: has "maybe"'
    ):
        read(marks, label_column=("dog", "night"))
    with pytest.raises(Refusal, match=r"a.tsv:2: has the label 0.5: write printable text or a whole number"):
        read(table(tmp_path / "a.tsv", ["[0.5]", "[1]", "[2]", "[]"]))
    with pytest.raises(
        Refusal, match=r"a.tsv:3: has labels without commas between them, \['red' 'blue'\]: write a list of JSON, or use a delim"
    ):
        read(table(tmp_path / "a.tsv", ["['red']", "['red' 'blue']", '["red\\" \\"blue"]', ""]))
    with pytest.raises(Refusal, match=r'a.tsv:3: has "" in the column night: write 1'):
        read(table(tmp_path / "a.tsv", ["0\t1", "1\t", "1\t1", "1\t0"], "dog\tnight"), label_column=("dog", "night"))
    with pytest.raises(Refusal, match=r'a.tsv:4: has "2_3" in the column labels: write a number'):
        read(table(tmp_path / "a.tsv", ["1", "-2.5e3", "2_3", "4"]), task="regression")
    with pytest.raises(Refusal, match=r"its samples have 1 label \(dog\), but this task needs two at least: write `task: classification`"):
        read(table(tmp_path / "a.tsv", ["dog", "dog", "", "dog"]))
    with pytest.raises(ValidationError, match="is for lists of labels in one column, with `task: multi_label`: write null"):
        read(marks, task="classification", label_delimiter=";")
    with pytest.raises(ValidationError, match="has a column twice: remove one"):
        read(marks, label_column=("dog", "dog"))


def test_the_last_sample_of_a_rare_label_stays_in_train_and_each_label_is_drawn_by_its_share() -> None:
    task = LabelTargets(labels=("common", "rare", "single"))
    targets = np.zeros((400, 3), np.uint8)
    targets[:200, 0], targets[190:200, 1], targets[7, 2] = 1, 1, 1
    for seed in range(5):
        assigned = split.assign({TRAIN: targets}, task, valid=0.3, test=0.3, seed=seed)[TRAIN]
        assert assigned[7] == TRAIN
        assert [(assigned[190:200] == part).sum() for part in ("test", "valid", "train")] == [3, 2, 5]
        assert [(assigned[200:] == part).sum() for part in ("test", "valid", "train")] == [60, 42, 98]
    assert [task.stratum_name(number) for number in (1, 3)] == ["label rare", "the samples without labels"]
    for column, message in ((1, "no sample with rare: add some"), (0, "only samples with common: add others")):
        constant = targets.copy()
        constant[:, column] = column == 0
        with pytest.raises(Refusal, match=f"source.root: x has {message}, or remove the label"):
            task.refuse_unlearnable(constant, "x")


@pytest.mark.parametrize(
    ("name", "content", "columns", "said"),
    [
        ("a.jsonl", "{}\n", Columns((1, 2), 3), "set source.text_column and source.label_column.0 and source.label_column.1 to names"),
        ("a.csv", "text,label\nx,a\nlabel,text\n", Columns(("label",), "text"), "a.csv:3: has the names of the columns in place of values"),
    ],
)
def test_a_column_or_row_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: str, columns: Columns, said: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(Refusal, match=said):
        tables.read(path, columns)


def test_an_image_may_have_a_number_as_its_name_or_none_beside_its_label(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"image": 17, "label": "a"}\n{"image": 18, "label": "b"}\n' * 2, encoding="utf-8")
    columns = Columns(("label",), "image", of_images=True)
    assert [row.text for row in tables.read(path, columns)] == ["17", "18", "17", "18"]
    without = Columns(("label",), of_images=True)
    assert len(labelled_tables.read({TRAIN: [path]}, without, ClassLabels(without.labels), path, "utf-8", skip_empty=True).rows) == 4
