"""Several labels a sample: the forms in which tables have them, and what is refused with its line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core.raw_dataset import TRAIN
from pipeline.core.refusal import Refusal
from pipeline.prepare import split
from pipeline.prepare.reading import labelled_tables
from pipeline.prepare.reading.labelled_tables import Labelled
from pipeline.prepare.reading.tables import Columns
from pipeline.sources.text_classification import Settings
from pipeline.tasks.multi_label.targets import LabelTargets
from tests.sources.settings import source

TEXTS = ("a red sky", "rain", "fog at night", "snow")
LABELS = (["dog", "sun"], [], ["night"], ["dog", "night"])
NAMES = ("dog", "night", "sun")
MARKS = [[int(name in labels) for name in NAMES] for labels in LABELS]


def read(path: Path, **changes: Any) -> Labelled:
    settings = source(Settings, path, **{"task": "multi_label", "text_column": "text", "label_column": "labels", **changes})
    columns = Columns(settings.label_columns, "text")
    parts = labelled_tables.of_tables({TRAIN: [path]}, "utf-8", settings.label_columns[0])
    return labelled_tables.read(parts, columns, settings.labels, path, skip=settings.on_corrupt == "skip")


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
        assert labelled.task.sizes(labelled.targets[TRAIN]) == {f"label {name}": sum(name in labels for labels in LABELS) for name in NAMES}


def test_what_is_no_label_is_refused_with_its_line(tmp_path: Path) -> None:
    marks = table(tmp_path / "a.tsv", ["0\t1", "-1\t0", "1\t1", "maybe\t0"], "dog\tnight")
    with pytest.raises(
        Refusal, match='line 3: has "-1" in the column dog: write 1 if the sample has this label, else 0; line 5: has "maybe"'
    ):
        read(marks, label_column=("dog", "night"))
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
    with pytest.raises(Refusal, match="is for lists of labels in one column, with `task: multi_label`: write null"):
        read(marks, task="classification", label_delimiter=";")
    with pytest.raises(Refusal, match="has a column twice: remove one"):
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
