"""The same rows in any format, and in blocks of any size, give equal bytes, splits and messages."""

import json
import re
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline.core import registry
from pipeline.core.environment import Environment, Paths
from pipeline.core.prepared import Prepared
from pipeline.core.raw_dataset import TEST, TRAIN, VALID
from pipeline.core.refusal import Refusal
from pipeline.prepare.inputs import table as table_inputs
from pipeline.prepare.inputs import tokens
from pipeline.prepare.reading import delimited, json_rows, parquet, streams
from pipeline.prepare.stage import prepare, survey
from pipeline.sources import table, text_classification, text_pairs

from .rows import FORMATS, write
from .settings import params

NUMBERS = [0.1, 3.0, 1e-05, 1e20, -0.0, 1 / 3, None, 2.5]
NUM_ROWS = 48
EVERY: list[dict[str, Any]] = [
    {
        "size": NUMBERS[at % 7],
        "count": None if at % 11 == 3 else at * at,
        "code": f"00{at % 3}",
        "yes": at % 4 < 2,
        "day": date(2024, 1, 1 + at % 28),
        "time": datetime(2024, 1, 1 + at % 9, at % 24, 30 * (at % 2)),  # noqa: DTZ001  # as tables have them
        "city": (None, "NA", "Oslo", "Caf\u00e9, \u201cA\u201d", 'quoted "b"')[at % 5],
        "text": f"text {at % 17}, of\u00a0words",
        "other": f'an "{at}" {"and more " * (at % 5)}',
        "label": at % 2,
        "part": ("train", "train", "valid", "test")[at // 2 % 4],
    }
    for at in range(NUM_ROWS)
]
SAID = {"label_column": "label", "ignored_columns": ["part", "text", "other"], "category_columns": ["code"]}
WORDS = {"tokenizer": "word", "vocabulary": 100, "min_count": 1, "normalization": ["strip_accents"]}
SOURCES: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "table": (table.Settings, SAID),
    "numbers": (table.Settings, SAID | {"number_columns": ["size"]}),
    "table in splits": (table.Settings, {"label_column": "size", "task": "regression", "split_column": "part", "on_corrupt": "skip"}),
    "texts": (text_classification.Settings, {"text_column": "text", "label_column": "label", **WORDS}),
    "texts in splits": (
        text_classification.Settings,
        {"text_column": "text", "label_column": "city", "split_column": "part", "on_corrupt": "skip", **WORDS},
    ),
    "pairs": (text_pairs.Settings, {"text_column": "text", "target_column": "other", **WORDS}),
    "pairs in splits": (
        text_pairs.Settings,
        {"text_column": "text", "target_column": "city", "split_column": "part", "on_corrupt": "skip", **WORDS},
    ),
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_column": 2}, "source.target_column: must be of the same kind as text_column: both a name, or both a number"),
        ({"target_column": "source"}, "source.target_column: must be another column than text_column"),
        ({"split_column": 3}, "source.split_column: must be of the same kind as text_column: both a name, or both a number"),
        ({"split_column": "source"}, "source.split_column: must be another column than text_column"),
    ],
)
def test_the_columns_of_pairs_are_of_one_kind_and_differ(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Refusal, match=re.escape(message)):
        params(text_pairs.Settings, tmp_path, **changes)


def run(case: str, root: Path) -> Prepared:
    settings, changes = SOURCES[case]
    prepare(params(settings, root, **{"valid": 0.2, "test": 0.2, **changes}), Paths(root.parent / "top"), Environment())
    return Prepared.open(Paths(root.parent / "top").prepared)


def keys(root: Path, split: str) -> list[str]:
    """Return the file and the line of each row of a split."""
    return list(map(json.loads, (Paths(root.parent / "top").prepared / f"{split}-keys.jsonl").read_text().splitlines()))


def first_line(suffix: str) -> int:
    return 2 if suffix.startswith((".csv", ".tsv")) else 1


def read_by_tiny_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (streams, "BLOCK_BYTES", 7),
        (delimited, "CHUNK_ROWS", 2),
        (json_rows, "CHUNK_ROWS", 3),
        (parquet, "TABLE_ROWS", 2),
        (parquet, "CHUNK_ROWS", 3),
        (tokens, "BLOCK_TEXTS", 2),
        (table_inputs, "BLOCK_ROWS", 5),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.mark.parametrize("case", SOURCES)
def test_every_format_in_blocks_of_any_size_gives_the_same_bytes_and_splits(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for suffix in (*FORMATS, *FORMATS):
        path = write(tmp_path / f"rows{suffix}", EVERY)
        prepared, said, first = run(case, path), capsys.readouterr().out, first_line(suffix)
        numbers = {split: [int(key.removeprefix(f"{path.name}:")) - first for key in keys(path, split)] for split in prepared.splits}
        left_out = [int(line) - first for line in re.findall(rf"{path}:(\d+)", said)]
        found.append((numbers, left_out, re.sub(rf"{path}:\d+", "row", said), prepared.digest))
        assert found[-1] == found[0], suffix
        if suffix == FORMATS[-1]:
            read_by_tiny_blocks(monkeypatch)
    numbers, left_out, *_ = found[0]
    assert len(left_out) == (3 if "splits" in case else 0)
    if "splits" in case:
        assert {split: {EVERY[at]["part"] for at in of_split} for split, of_split in numbers.items()} == {
            split: {split} for split in numbers
        }
        column = SOURCES[case][1].get("target_column") or SOURCES[case][1]["label_column"]
        assert (
            left_out
            == [at for at, row in enumerate(EVERY) if row[column] is None or (row[column] == "NA" and case.startswith("texts"))][:3]
        )


FAULTS: dict[str, tuple[str, str, dict[int, Any], str]] = {
    "no text": ("texts", "text", {3: None, 44: " "}, "line 3, 44: has an empty text: write a text"),
    "no target text": ("pairs", "other", {2: None, 9: " "}, "line 2, 9: has an empty text in the column other: write one, remove the row"),
    "a NUL": ("pairs", "other", {17: "a\0b"}, ":17: has a NUL character, so it is no text: remove it"),
    "no label": ("texts", "label", {5: "?", 40: "?"}, 'line 5, 40: has no label but "?" in the column label: write one'),
    "no class": ("texts", "label", {48: "\x1b"}, ':48: has the label "\\u001b": write printable text'),
    "no number": ("numbers", "size", {2: "2_3", 47: "x"}, 'line 2: has 2_3 in the column size: write a number, or leave the cell empty; line 47: has x'),
    "no target": ("table in splits", "size", {9: "x"}, ':9: has "x" in the column size: write a number such as 3.5'),
    "no split": ("table in splits", "part", {46: "tset"}, ":46: the column part has tset, which is no split: write train, valid or test"),
    "a class that train lacks": ("texts in splits", "city", {5: "Lima"}, ":5: has the label Lima, which no row of train has: correct it"),
    "no token": ("texts", "text", {31: "\u0301"}, ":31: has a text in which the tokenizer finds no token: change it or remove the row"),
    "no token of a target": ("pairs", "other", {31: "\u0301"}, ":31: has a text in which the tokenizer finds no token: change it or remove the row"),
}  # fmt: skip


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize(("case", "column", "cells", "message"), FAULTS.values(), ids=FAULTS)
def test_a_row_that_cannot_be_used_is_named_by_its_file_and_line(
    tmp_path: Path, case: str, column: str, cells: dict[int, Any], message: str, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{**row, column: cells.get(at, None if row[column] is None else str(row[column]))} for at, row in enumerate(EVERY, 1)]
    expected = re.sub(r"(?<=:)\d+|(?<=line )\d+|(?<=, )\d+(?=:)", lambda line: str(int(line[0]) + first_line(suffix) - 1), message)
    root, others = (
        tmp_path / "folder",
        [{**row, column: str(row[column])} for row in EVERY if row[column] is not None and row["part"] == "train"],
    )
    paths = {write(tmp_path / f"rows{suffix}", rows): "rows", tmp_path / "folder": "train-2-of-2"}
    write(root / f"train-1-of-2{suffix}", others)
    write(root / f"train-2-of-2{suffix}", rows)
    found = []
    for path, name in [*paths.items(), *paths.items()]:
        with pytest.raises(Refusal) as caught:
            run(case, path)
        found.append(str(caught.value))
        assert expected in found[-1]
        assert f"{name}{suffix}" in found[-1]
        if path.is_dir():
            read_by_tiny_blocks(monkeypatch)
    assert found[:2] == found[2:]


def test_each_row_of_several_files_has_its_own_key_inputs_and_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"train-1-of-2.csv": EVERY[:20], "train-2-of-2.csv": EVERY[20:40], "test.csv": EVERY[40:]}
    for name, rows in files.items():
        write(tmp_path / "folder" / name, rows)
    for _ in range(2):
        prepared = run("table in splits", tmp_path / "folder")
        at, seen = [column.name for column in prepared.spec.inputs.columns].index("count"), 0  # type: ignore[attr-defined]
        for split, rows in prepared.splits.items():
            places = [key.split(":") for key in keys(tmp_path / "folder", split)]
            expected = [files[name][int(line) - 2] for name, line in places]
            assert {row["part"] for row in expected} == {split}
            assert rows.targets[:, 0].tolist() == [row["size"] for row in expected]
            assert [None if np.isnan(count) else count for count in rows.inputs[:, at]] == [row["count"] for row in expected]
            seen += len(places)
        assert seen == sum(row["size"] is not None for row in EVERY)
        read_by_tiny_blocks(monkeypatch)


@pytest.mark.parametrize("name", ["table", "text_classification", "image_table"])
def test_rows_of_one_group_go_to_one_split(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(60):
        Image.new("L", (2, 2), number * 4).save(folder / f"{number}.png")
    rows = [f"{number}.png,{number * number % 97}.5,some words {number},{'ab'[number % 2]},{number % 12}" for number in range(60)]
    (folder / "all.csv").write_text("\n".join(["image,size,text,label,patient", *rows]), encoding="utf-8")
    own: dict[str, Any] = {
        "table": {"ignored_columns": ["image", "text"], "root": folder / "all.csv"},
        "text_classification": {"text_column": "text", "root": folder / "all.csv"},
        "image_table": {"table": "all.csv", "image_size": 2},
    }[name]
    changes = {"root": folder, "label_column": "label", "group_column": "patient", "valid": 0.2, "test": 0.2, **own}
    given = params(registry.SOURCES.settings(name), changes.pop("root"), **changes)
    _, assigned = survey(given, workers=1)
    for patient in range(12):
        assert len({assigned[TRAIN][number] for number in range(60) if number % 12 == patient}) == 1
    assert {*assigned[TRAIN].tolist()} == {TRAIN, VALID, TEST}
    (folder / "all.csv").write_text("\n".join(["image,size,text,label,patient", *rows, "1.png,2,a b,a,"]), encoding="utf-8")
    with pytest.raises(Refusal, match=r"all\.csv:62: has no value in the column patient \(source\.group_column\): write one"):
        survey(given, workers=1)


def tiny_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "BLOCK_BYTES", 200)
    monkeypatch.setattr(delimited, "CHUNK_ROWS", 7)


def test_a_row_left_out_is_the_same_in_both_passes_whatever_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f'"{number}\r{"x" * (number % 5)}",{number}.5,{"" if number % 7 == 3 else "ab"[number % 2]}' for number in range(300)]
    (tmp_path / "a.csv").write_bytes("\n".join(["note,size,label", *rows]).encode())
    tiny_blocks(monkeypatch)
    given = params(table.Settings, tmp_path / "a.csv", label_column="label", on_corrupt="skip", ignored_columns=["note"], test=0.2)
    dataset, assigned = survey(given, workers=1)
    dataset.fit(assigned)
    sizes = np.concatenate([block.inputs[:, 0] for block in dataset.blocks()])
    used = [number for number in range(300) if number % 7 != 3]
    assert sizes.tolist() == [number + 0.5 for number in used]
    assert dataset.targets[TRAIN].tolist() == [number % 2 for number in used]


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        ("17", "1,5", "columns of the kind number: size (1234,5: 1.5 to 17)"),
        ("20240105", "2024-03-01", "columns of the kind date: size"),
        ("17", "k17", "columns of the kind category: size"),
    ],
)
def test_what_a_column_holds_does_not_depend_on_where_a_block_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, then: str, said: str
) -> None:
    rows = [f"{first if number < 60 else then};{number}.5;{'ab'[number % 2]}" for number in range(120)]
    (tmp_path / "a.csv").write_text("\n".join(["size;other;label", *rows]), encoding="utf-8")
    for blocks in (lambda _: None, tiny_blocks):
        blocks(monkeypatch)
        try:
            found = str(params(table.Settings, tmp_path / "a.csv", label_column="label").source.open(workers=1).notes)
        except Refusal as refusal:
            found = str(refusal)
        assert said in found


def test_a_row_in_front_leaves_the_keys_of_all_others(tmp_path: Path) -> None:
    rows = [f"{['Rome', 'Oslo', 'Bern'][number % 3]},{number}.5,{'ab'[number % 2]}" for number in range(60)]
    found = []
    for name, every in {"a.csv": rows, "b.csv": ["Lima,0.25,a", *rows]}.items():
        (tmp_path / name).write_text("\n".join(["city,size,label", *every]), encoding="utf-8")
        dataset = params(table.Settings, tmp_path / name, label_column="label", duplicates="together").source.open(workers=1)
        found.append([*dataset.drawing_keys()])
    assert found[0] == found[1][1:]


def test_a_faulty_quote_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("\n".join(["text,label", '"bad" text,a', *["fine,b"] * 200]), encoding="utf-8")
    tiny_blocks(monkeypatch)
    seen = list[streams.TextBlock]()

    def blocks() -> Iterator[streams.TextBlock]:
        for block in streams.text_blocks(tmp_path / "a.csv"):
            seen.append(block)
            yield block

    with pytest.raises(Refusal, match=r"a\.csv:2: is not valid CSV"):
        list(delimited.csv_chunks(blocks(), "a.csv"))
    assert len(seen) < 4
