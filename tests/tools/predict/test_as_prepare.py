"""`predict` reads what `prepare` reads: the same samples under the same keys, from the same files."""

import gzip
import json
from collections.abc import Iterable, Iterator
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core.environment import Environment, Paths
from pipeline.core.params import from_data
from pipeline.core.prepared import Prepared
from pipeline.core.refusal import Refusal
from pipeline.core.spec import Spec
from pipeline.inputs.image import predict as image
from pipeline.inputs.table import predict as table
from pipeline.inputs.table.description import TableInputs
from pipeline.inputs.text import predict as text
from pipeline.inputs.text.description import TextInputs
from pipeline.prepare.params import PrepareParams
from pipeline.prepare.stage import prepare
from pipeline.tools.predict.protocols import Chunk, Reading
from pipeline.tools.predict.raw_inputs import RawInputs, TableColumn
from tests.sources.pictures import picture, write_folder, write_tar
from tests.sources.test_text_classification import FILES, NAMED, WORD
from tests.tools.predict.test_predict_text import SPEC

COMMON = {
    "valid": 0.0,
    "test": 0.3,
    "seed": 1,
    "folds": None,
    "fold": 0,
    "task": "classification",
    "label_delimiter": None,
    "positive_class": None,
    "group_column": None,
    "divide": "random",
    "duplicates": "keep",
    "table": None,
    "split_column": None,
    "encoding": "utf-8",
    "on_corrupt": "fail",
}
TEXTS = ['the first, and "only"', "two\nlines", "zwei Zeilen", "sun and sun", "warm", "grey"]
ROWS = [{"id": 7 * number, "text": value, "label": "ab"[number % 2]} for number, value in enumerate(TEXTS)]
GREYS = {f"{name}/{number}.png": 20 * number + 7 for name in ("cat", "dog") for number in range(4)}
Samples = dict[str, list[Any]]


def prepared(top: Path, source: dict[str, Any]) -> tuple[Spec, Samples]:
    """Prepare a source, and return the description of the data, and each stored sample by its key."""
    prepare(from_data({"source": COMMON | source}, PrepareParams, "test"), Paths(top), Environment())
    data, found = Prepared.open(Paths(top).prepared), dict[str, list[Any]]()
    for name, split in data.splits.items():
        keys = map(json.loads, (Paths(top).prepared / f"{name}-keys.jsonl").read_text().splitlines())
        found |= {key: row.tolist() for key, row in zip(keys, split.inputs, strict=True)}
    return data.spec, found


def predicted(spec: Spec, *paths: Path, prefix: str, column: Any = None) -> Samples:
    """Return each sample that `predict` reads by its name, without `prefix`."""
    reader = text.Reader(spec.inputs) if isinstance(spec.inputs, TextInputs) else image.Reader(spec.inputs)  # type: ignore[arg-type]
    given = RawInputs(reader, TableColumn(spec.inputs.column, column), workers=2)
    return {name.removeprefix(prefix): np.asarray(row).tolist() for name, row in inputs_of(given.read(paths))}


def inputs_of(readings: Iterable[Reading | Chunk]) -> Iterator[Reading]:
    for reading in readings:
        yield from zip(reading.names, reading.samples, strict=True) if isinstance(reading, Chunk) else [reading]


def csv(rows: Iterable[dict[str, Any]], sign: str = ",") -> bytes:
    quoted = [[str(value).replace('"', '""') for value in row.values()] for row in rows]
    lines = [sign.join(ROWS[0]), *(sign.join(f'"{value}"' for value in row) for row in quoted)]
    return "\n".join(lines).encode()


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json", "a.csv.gz", "a.parquet", "folder/train.csv"])
def test_each_table_of_texts(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    flat = [{**row, "text": row["text"].replace("\n", " ")} for row in ROWS]
    contents = {
        "a.csv": csv(ROWS, ";"),
        "a.tsv": "\n".join("\t".join(map(str, row)) for row in [ROWS[0], *(row.values() for row in flat)]).encode(),
        "a.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS).encode(),
        "a.json": json.dumps(ROWS).encode(),
        "a.csv.gz": gzip.compress(csv(ROWS)),
    }
    if name == "a.parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        path.write_bytes(contents.get(name) or csv(ROWS))
    root = path.parent if "/" in name else path
    spec, expected = prepared(tmp_path / "top", {"name": "text_classification", "root": str(root), **WORD, **NAMED})
    assert len(expected) == 6
    assert predicted(spec, root, prefix=f"{path.parent}/") == expected


def test_texts_in_files_by_class(tmp_path: Path) -> None:
    files = {f"{'ab'[number % 2]}/{number}.txt": f"{value}\nand more\n".encode() for number, value in enumerate(TEXTS)}
    write_folder(tmp_path / "texts", files)
    write_tar(tmp_path / "texts.tar", files)
    spec, expected = prepared(tmp_path / "top", {"name": "text_classification", "root": str(tmp_path / "texts"), **WORD, **FILES})
    for root in (tmp_path / "texts", tmp_path / "texts.tar"):
        assert predicted(spec, root, prefix=f"{root}/") == expected


def test_each_table_of_images(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "pictures", {name: picture(value) for name, value in GREYS.items()})
    (root / "list.csv").write_text("file,label\n" + "".join(f"{name},{name[:3]}\n" for name in GREYS))
    (root / "parts").mkdir()
    rows = [{"file": {"bytes": picture(value), "path": name}, "label": name[:3]} for name, value in GREYS.items()]
    for number in range(2):
        pq.write_table(pa.Table.from_pylist(rows[number::2]), root / f"parts/train-0000{number}-of-00002.parquet")
    section = {"image_size": 8, "channels": 1, "on_corrupt": "fail", "max_pixels": 10_000, "image_column": "file", "label_column": "label"}
    section |= {"name": "image_table", "white": None, "split_column": None}
    spec, expected = prepared(tmp_path / "top", {**section, "root": str(root), "table": "list.csv"})
    assert len(expected) == 8
    assert predicted(spec, root / "list.csv", prefix=f"{root}/") == expected
    unused: list[str] = []
    given = RawInputs(image.Reader(spec.inputs), TableColumn("file", None), workers=1, on_unused=unused.append)  # type: ignore[arg-type]
    assert len([name for name, _ in inputs_of(given.read([root]))]) == 16, "each image, and each that a Parquet file holds"
    assert unused == [f"{root}/list.csv"]
    spec, expected = prepared(tmp_path / "top", {**section, "root": str(root / "parts"), "table": None})
    assert len(expected) == 8
    assert predicted(spec, root / "parts", prefix=f"{root}/parts/") == expected


def refusals(spec: Spec, path: Path, column: Any = None) -> list[str]:
    reader = text.Reader(spec.inputs)  # type: ignore[arg-type]
    given = RawInputs(reader, TableColumn(spec.inputs.column, column), workers=1)
    return [str(row) if isinstance(row, Refusal) else "read" for _, row in inputs_of(given.read([path]))]


def test_rows_in_a_folder_are_known_by_their_content(tmp_path: Path) -> None:
    inputs = TableInputs.example()
    names = [column.name for column in inputs.columns]
    (tmp_path / "rows.txt").write_text("".join("\t".join([*names, "other", "more"]) + "\n" for _ in range(3)))
    (tmp_path / "notes.txt").write_text("a note\n")
    unused = list[str]()
    raw = RawInputs(table.Reader(inputs), TableColumn(None, None), workers=1, on_unused=unused.append)
    assert len(list(raw.read([tmp_path]))) > 1
    assert unused == [f"{tmp_path}/notes.txt"]


def test_a_table_without_the_column_of_the_training_is_refused(tmp_path: Path) -> None:
    def trained_on(column: Any) -> Spec:
        return SPEC.model_copy(update={"inputs": SPEC.inputs.model_copy(update={"column": column})})

    def refused(spec: Spec, name: str) -> str:
        [message] = refusals(spec, tmp_path / name)
        return message.replace(f"{tmp_path}/", "")

    (tmp_path / "a.csv").write_text("id,text\n1,the cat\n2,when ?\n")
    (tmp_path / "b.csv").write_text("id,words\n1,the cat\n2,when ?\n")
    (tmp_path / "plain.csv").write_text("a,the cat\na,when ?\nb,the dog\nb,the street\n")
    (tmp_path / "text").write_text("id;text\n1;the cat\n")
    (tmp_path / "lines").write_text('{"text": "the cat"}\n')
    (tmp_path / "list.xlsx").write_bytes(b"PK\3\4" + bytes(99))
    named, numbered, earlier = map(trained_on, ("text", 2, None))
    assert refusals(named, tmp_path / "a.csv") == ["read", "read"]
    assert refusals(earlier, tmp_path / "a.csv", "text") == ["read", "read"]
    assert refusals(numbered, tmp_path / "plain.csv") == ["read"] * 4
    assert refusals(named, tmp_path / "plain.csv", 2) == ["read"] * 4
    assert refused(earlier, "a.csv").endswith("add --column NAME with one of its columns, id, text")
    assert "has the columns id, words: write one of these" in refused(named, "b.csv")
    assert refused(named, "b.csv").endswith("(the model reads the column text; --column reads another one)")
    assert all(refused(named, name).startswith("its first line has the column text, so it is a table") for name in ("text", "lines"))
    assert refused(named, "list.xlsx").startswith("is packed, but called neither a table nor one of .zip")


def test_lines_with_a_label_are_no_texts_where_the_model_reads_a_field(tmp_path: Path) -> None:
    path = tmp_path / "test.txt"
    path.write_text("".join(f"sun {number};a\n" for number in range(30)), encoding="utf-8")
    numbered = SPEC.inputs.model_copy(update={"column": 1})
    with BufferedReader(FileIO(path)) as stream, pytest.raises(Refusal, match="its lines have several fields, and the model reads field 1"):
        list(text.Reader(numbered).lines("test.txt", stream))
    with BufferedReader(FileIO(path)) as stream:
        assert len(list(text.Reader(SPEC.inputs).lines("test.txt", stream))) == 30
