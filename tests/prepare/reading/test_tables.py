"""Tables of every format: the cells and lines of their rows, the forms of JSON, and what is refused with its place and remedy."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core.refusal import Refusal
from pipeline.prepare.reading import json_rows, tables
from pipeline.prepare.reading.parquet import MissingColumn
from tests.sources.rows import packed

QUOTED = '"fine", he said'


def read(path: Path, *columns: str | int) -> list[tuple[Any, ...]]:
    """Return the line of each row and its cells in some columns."""
    found = tables.records(tables.blocks(path, [(f"source.column_{at}", column) for at, column in enumerate(columns)]))
    return [(line, *(cells[column] for column in columns)) for line, cells in found]


READ: dict[str, tuple[str, str | list[Any] | dict[str, Any], tuple[str | int, ...], list[tuple[Any, ...]]]] = {
    "a TSV without names": ("a.tsv", f"good\t{QUOTED}\r\nbad\train\r\n", (2, 1), [(1, QUOTED, "good"), (2, "rain", "bad")]),
    "a TSV with a mark": ("a.tsv", f"\ufefflabel\tid\ttext\n\ngood\t1\t{QUOTED}\nbad\t2\train", ("text", "label"), [(3, QUOTED, "good"), (4, "rain", "bad")]),
    "a CSV": ("a.csv", 'text,label\n"""fine"", he said",good\nrain,bad\n', ("text", "label"), [(2, QUOTED, "good"), (3, "rain", "bad")]),
    "a CSV without names": ("a.CSV", "x,y\n1,2\n", (2,), [(1, "y"), (2, "2")]),
    "a row of two lines": ("a.csv", 'text,label\n"two\nlines",1\nx,2\n', ("text",), [(2, "two\nlines"), (4, "x")]),
    "lines with labels": ("a", "__label__b a text\n\n__label__c more\n", (1, 2), [(1, "__label__b", "a text"), (3, "__label__c", "more")]),
    "JSON lines": ("a.jsonl", '{"text": "\\"fine\\", he said", "more": [1]}\n\n{"more": {"a": "é"}, "text": 17}\n', ("text", "more"), [(1, QUOTED, "[1]"), (3, "17", '{"a": "é"}')]),
    "values of JSON": ("a.ndjson", '{"a": 0.5, "b": true}\n{"a": 1e20, "b": null}\n', ("a", "b"), [(1, "0.5", "true"), (2, "1e+20", None)]),
    "objects": ("a.json", [{"a": 1}, {"a": "x"}], ("a",), [(1, "1"), (2, "x")]),
    "lists": ("a.json", [["x", 1], ["y", 2]], (2,), [(1, "1"), (2, "2")]),
    "columns": ("a.json", {"a": ["x", "y"], "b": [1, 2]}, ("b", "a"), [(1, "1", "x"), (2, "2", "y")]),
    "lists of splits": ("a.json", {"train": [{"a": 1}], "test": [{"a": 2}]}, ("a", "split"), [(1, "1", "train"), (2, "2", "test")]),
    "a table of pandas": ("a.json", {"columns": ["a", "b"], "index": [0], "data": [["x", 2]]}, ("b",), [(1, "2")]),
    "rows beside what describes them": ("a.json", {"classes": {"x": {"id": 0}, "y": {"id": 1}}, "data": [{"a": 1}, {"a": 2}]}, ("a",), [(1, "1"), (2, "2")]),
    "lines in a document": ("a.json", '{"a": 1}\n\n{"a": 2}\n', ("a",), [(1, "1"), (3, "2")]),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content", "columns", "rows"), READ.values(), ids=READ)
def test_the_rows_of_every_format(
    tmp_path: Path, name: str, content: str | list[Any] | dict[str, Any], columns: tuple[str | int, ...], rows: list[tuple[Any, ...]]
) -> None:
    path = packed(tmp_path / name, (content if isinstance(content, str) else json.dumps(content)).encode())
    assert read(path, *columns) == rows


REFUSED: dict[str, tuple[str, str, tuple[str | int, ...], str]] = {
    "no such column": ("a.csv", "x,y\n1,2\n", ("z",), "source.column_0: is z, but .*a.csv:1 has the columns x, y: write one of these"),
    "numbers of keys": ("a.jsonl", '{"x": 1}\n', (1, 2), "source.column_0: .* have names, not numbers: set source.column_0 and source.column_1 to names of its"),
    "no list": ("a.json", "3", ("x",), "a.json: is neither a list of objects nor an object with lists"),
    "no rows in a list": ("a.json", "[1]", ("x",), "a.json: has 1 where a row is expected"),
    "columns of other lengths": ("a.json", '{"a": [1], "b": [1, 2]}', ("a",), "has lists of 1 to 2 values: make the columns equally long"),
    "rows by their ids": ("a.json", '{"a":[["x"]],"b":{"0":{"t":1},"1":{"t":2}}}', (1,), "objects in the list a and in the object b: write a list of the rows"),
    "an empty list": ("a.json", "[]", ("x",), "a.json: has no rows: add some, or remove the file"),
    "a long document": ("a.json", f'["{"x" * 50}"]', ("x",), "has more than 50 characters in one document: write one object per line, and call"),
    "several labels": ("a.txt", "__label__b __label__c text\n__label__b text\n", (1,), "a.txt:1: has several labels, which no source reads"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content", "columns", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_table_is_refused_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str, columns: tuple[str | int, ...], message: str
) -> None:
    monkeypatch.setattr(json_rows, "MOST_CHARACTERS", 50)
    with pytest.raises(Refusal, match=message):
        read(packed(tmp_path / name, content.encode()), *columns)


def test_a_key_that_only_a_later_row_lacks_is_no_missing_column(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"a\.jsonl:2: has no key x") as caught:
        read(packed(tmp_path / "a.jsonl", b'{"x": 1}\n{"y": 2}\n'), "x")
    assert not isinstance(caught.value, MissingColumn)


def test_names_are_read_in_the_encoding_and_a_text_may_have_the_greatest_length(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("gr\u00f6\u00dfe,b\n1,2\n".encode("latin-1"))
    assert tables.names(tmp_path / "a.csv", encoding="latin-1") == ["gr\u00f6\u00dfe", "b"]
    longest = "x" * tables.LONGEST_FIELD
    assert tables.checked_text(longest, "a.txt") == longest
    with pytest.raises(Refusal, match="has a text of 1048577 characters, more than 1048576"):
        tables.checked_text(f"{longest}x", "a.txt")


def test_a_parquet_file_gives_the_rows_of_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    columns = {
        "label": pa.array(["b", "a"]).dictionary_encode(),
        "number": [0.1, None],
        "list": [["x"], []],
        "day": [date(2024, 1, 5), None],
        "time": pa.array([0, 1500], pa.timestamp("ms", "UTC")),
        "image": [{"bytes": b"", "path": "a.png"}, {"bytes": None, "path": "b.png"}],
        "nested": [{"a": 1}, {"a": 2}],
    }
    pq.write_table(pa.table(columns), path)
    assert read(path, *(name for name in columns if name != "nested")) == [
        (1, "b", 0.1, '["x"]', "2024-01-05", "1970-01-01 00:00:00Z", "a.png"),
        (2, "a", None, "[]", None, "1970-01-01 00:00:01.500Z", "b.png"),
    ]
    assert tables.names(path) == ["label", "number", "list", "day", "time"]
    assert tables.unread(path) == ["image", "nested"]
    with pytest.raises(Refusal, match="the column nested has nested values"):
        read(path, "label", "nested")
    with pytest.raises(
        MissingColumn, match="has 0 columns called words: write one of its columns, label, number, list, day, time, image, nested"
    ):
        read(path, "words")
    content = path.read_bytes()
    pq.write_table(pa.table({"name": pa.array([b"a", b"caf\xe9"]).view(pa.string())}), path)
    with pytest.raises(Refusal, match=r"a\.parquet:2: has b'caf\\xe9' in the column name, which is not UTF-8: store the column anew"):
        read(path, "name")
    path.write_bytes(content[:20] + bytes(20) + content[40:-8])
    with pytest.raises(Refusal, match=r"a\.parquet: cannot be read as Parquet"):
        read(path, "label")
