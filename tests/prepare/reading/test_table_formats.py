"""The format of a table: by its name, or by its first lines."""

from pathlib import Path

import pytest

from pipeline.core.refusal import Refusal
from pipeline.prepare.reading.line_files import find_line_files
from pipeline.prepare.reading.table_formats import suffix_of
from pipeline.prepare.reading.table_sets import SeveralSets, find_tables, tables_in
from tests.prepare.reading.test_tables import read
from tests.sources.rows import packed

TABBED = "".join(f"{n}\ta {'good' if n % 2 else 'bad'} day, no {n}\t0.{n}\n" for n in range(20))
FORMATS: dict[str, tuple[str, str, str]] = {
    "by its name": ("a.CSV.gz", "whatever", ".csv"),
    "objects of JSON": ("a.txt", '{"a": 1}\n\n{"a": 2}\n', ".jsonl"),
    "lists of JSON": ("a.txt", "[1]\n[2]\n", ""),
    "lines of code": ("a.txt", "{ x }\n{ y }\n", ""),
    "mostly numbers": ("a.txt", "  1.5 2\n 3.5 4\n", ".csv"),
    "fields with tabs": ("a.trn", TABBED, ".tsv"),
    "fields in quotes": ("a.txt", TABBED.replace("\ta", '\t"a').replace("\t0", '"\t0'), ".csv"),
    "quotes within fields": ("a.txt", TABBED.replace("\ta", '\t"a" a'), ".tsv"),
    "few lines with tabs": ("a.txt", TABBED.partition("2\t")[0], ".tsv"),
    "few lines with commas": ("a.txt", TABBED.partition("19\t")[0].replace("\t", ","), ""),
    "a label and commas": ("a.txt", "".join(f"__label__{n % 2} a day, not good, no {n}\n" for n in range(20)), ""),
    "labels and numbers": ("a.txt", "".join(f"__label__{n % 2} 5 12 {n}\n" for n in range(30)), ""),
    "pairs of numbers": ("a.txt", "".join(f"4 9 {n}\t{n} 9 4\n" for n in range(30)), ""),
    "a class and numbers": ("a.txt", "1 2.5 3\n2 4.5 6\n", ".csv"),
    "bars": ("a.txt", "".join(f"a day no {n}|||bad\n" for n in range(30)), ""),
    "a mark and many lines": ("a.txt", "\ufeff" + "".join(f"a{n},b{n},c\n" for n in range(9000)), ".csv"),
    "two fields": ("a.txt", "".join(f"{label}\ta day\n" for label in "ab" * 20), ""),
    "commas": ("a", 'name,"a, b",c\n' + "Ann,fine,x\n" * 20, ".csv"),
    "semicolons": ("a.txt", "kind;sex;city\n" + "old;f;Oslo or Bern\n" * 20, ".csv"),
    "verse with commas": ("a.txt", "Tyger, Tyger, burning bright\n" * 20 + "In the forests of the night\n", ""),
    "a readme": ("README.txt", TABBED, ""),
    "no file of text": ("a.pdf", TABBED, ""),
    "zeros": ("a.bin", "\0" * 50 + TABBED, ""),
    "a line break in quotes": ("a.tsv", 'a\tb\n1\t"two\nlines"\n', ".csv"),
    "a packed TSV": ("a.tsv.zst", 'a\tb\n1\t"two\nlines"\n', ".csv"),
    "quotes around fields": ("a.tsv", 'a\tb\n1\t"fine"\n2\t"x"\n', ".tsv"),
    "quotes in a text": ("a.tsv", 'a\tb\n1\t"fine", he said\n2\t"\n', ".tsv"),
    "faults beside quotes": ("a.tsv", 'a\tb\n1\t"fine"\n2\n', ".tsv"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content", "suffix"), FORMATS.values(), ids=FORMATS)
def test_a_name_or_else_the_content_tells_the_format(tmp_path: Path, name: str, content: str, suffix: str) -> None:
    assert suffix_of(packed(tmp_path / name, content.encode())) == suffix


def test_a_change_of_the_content_changes_the_format(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("1.5 2\n3.5 4\n")
    assert suffix_of(path) == ".csv"
    path.write_text("one day\nanother one\n")
    assert suffix_of(path) == ""


def test_the_cells_are_those_of_a_file_that_is_called_like_its_format(tmp_path: Path) -> None:
    for name in ("a.txt", "b.tsv"):
        (tmp_path / name).write_text(TABBED)
    assert read(tmp_path / "a.txt", 1, 2, 3) == read(tmp_path / "b.tsv", 1, 2, 3)
    (tmp_path / "c.tsv").write_text('a\tb\n1\t"two\nlines"\n2\tx\n')
    assert read(tmp_path / "c.tsv", "b", "a") == [(2, "two\nlines", "1"), (4, "x", "2")]


def test_content_counts_only_in_a_folder_without_files_that_are_called_tables(tmp_path: Path) -> None:
    for name in ("train.txt", "dev.txt", "notes.md", "more/train.txt"):
        packed(tmp_path / name, (TABBED if name.endswith("txt") else "A note\n").encode())
    assert sorted(map(str, tables_in(tmp_path))) == ["dev.txt", "train.txt"]
    assert find_tables(tmp_path) == {"train": [tmp_path / "train.txt"], "valid": [tmp_path / "dev.txt"]}
    packed(tmp_path / "config.json", b'{"bins": 4}')
    assert [*find_tables(tmp_path)] == ["train", "valid"]
    packed(tmp_path / "train.csv", b"a,b\n1,2\n")
    assert find_tables(tmp_path) == {"train": [tmp_path / "train.csv"]}
    assert find_tables(tmp_path, "train.txt") == {"train": [tmp_path / "train.txt"], "valid": [tmp_path / "dev.txt"]}
    assert find_tables(tmp_path, "train.csv") == {"train": [tmp_path / "train.csv"]}


def test_equal_names_with_other_suffixes_are_sets_of_their_own(tmp_path: Path) -> None:
    for name in ("train.csv", "train.tsv", "test.tsv", "valid.jsonl"):
        packed(tmp_path / name, b"a\n1\n")
    with pytest.raises(SeveralSets, match=r"has 2 tables of train: keep one, or add source.table=train.csv or source.table=train.tsv"):
        find_tables(tmp_path)
    found = {split: [tmp_path / name] for split, name in {"train": "train.tsv", "valid": "valid.jsonl", "test": "test.tsv"}.items()}
    assert find_tables(tmp_path, "train.tsv") == found


def test_a_split_with_too_few_rows_to_tell_is_named(tmp_path: Path) -> None:
    rows = [f"a{n},b{n},c\n" for n in range(30)]
    packed(tmp_path / "train.txt", "".join(rows).encode())
    packed(tmp_path / "test.txt", "".join(rows[:8]).encode())
    with pytest.raises(Refusal, match=r"test.txt: does not look like rows, as train.txt does: call both .csv, or remove one"):
        find_tables(tmp_path)


def test_a_pattern_joins_several_sets(tmp_path: Path) -> None:
    for name in ("en/train.csv", "en/test.csv", "id/train.csv"):
        packed(tmp_path / name, b"a\n1\n")
    assert find_tables(tmp_path, "*/train.csv") == {
        "train": [tmp_path / "en/train.csv", tmp_path / "id/train.csv"],
        "test": [tmp_path / "en/test.csv"],
    }


def test_of_two_sets_of_parallel_files_that_with_other_splits_counts(tmp_path: Path) -> None:
    lines = {"corpus.src": 3, "corpus.trg": 3, "dev.src": 2, "dev.trg": 2, "human.trg": 4, "machine.trg": 4, "original.src": 4}
    for name, count in lines.items():
        packed(tmp_path / name, b"a line\n" * count)
    found = find_line_files(tmp_path)
    assert {split: sorted(files.values()) for split, files in found.items()} == {
        "train": [tmp_path / "corpus.src", tmp_path / "corpus.trg"],
        "valid": [tmp_path / "dev.src", tmp_path / "dev.trg"],
    }


def test_a_tsv_that_neither_way_can_be_read_names_the_line(tmp_path: Path) -> None:
    path = packed(tmp_path / "a.tsv", b'a\tb\n1\t"fine"\n2\n')
    with pytest.raises(Refusal, match=r"a.tsv:3: has 1 column, but line 1 has 2"):
        read(path, "a")
