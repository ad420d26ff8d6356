"""Delimited text: its rows are those of Python's csv, however it is cut into blocks, and whether Arrow or Python reads a block."""

import csv
import io
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.core.refusal import Refusal
from pipeline.prepare.reading import delimited
from pipeline.prepare.reading.delimited import Chunk
from pipeline.prepare.reading.streams import TextBlock

FIELDS = [
    "a",
    "",
    "1",
    '"q"',
    '"a,b"',
    '"a;b"',
    '"a\nb"',
    '"a\r\n\r\nb"',
    '"x ""y"""',
    '""',
    '5" d',
    ' "s"',
    "é",
    "''",
    '"',
    "\u2028",
    "NA",
]
Rows = list[tuple[int, list[str]]]


def drawn(draw: random.Random, separator: str) -> str:
    """Return a random text of CSV, of which some are invalid or have rows of different lengths."""
    width = draw.choice([1, 2, 2, 3])

    def field() -> str:
        return draw.choice(FIELDS) if draw.random() < 0.3 else "z"

    rows = [separator.join(field() for _ in range(width + (draw.random() < 0.02))) for _ in range(draw.randint(1, 8))]
    blank = draw.choice(["", "", "", "\n", separator * (width - 1) + "\n"])
    return blank + draw.choice(["\n", "\r\n"]).join(rows) + draw.choice(["\n", "\n\n", ""])


def blocks(draw: random.Random, text: str) -> Iterator[TextBlock]:
    lines, line = io.StringIO(text, newline="").readlines(), 1
    while lines or line == 1:
        count = draw.randint(1, 3)
        part = "".join(lines[:count])
        yield TextBlock(line, part)
        line, lines = line + max(1, part.count("\n")), lines[count:]


def expected(text: str, separator: str) -> Rows | None:
    """Return the rows that have a value with their first lines, or None if they are invalid or have different lengths."""
    rows, line = Rows(), 1
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        for fields in reader:
            if any(fields):
                rows.append((line, fields))
            line = reader.line_num + 1
    except csv.Error:
        return None
    return rows if len({len(fields) for _, fields in rows}) < 2 else None


def rows_of(chunks: Iterator[Chunk]) -> Rows:
    return [(int(line), chunk.row(at)) for chunk in chunks for at, line in enumerate(chunk.lines)]


def test_the_rows_of_any_blocks_are_those_of_the_whole_text(monkeypatch: pytest.MonkeyPatch) -> None:
    ways, by_arrow = Counter[str](), delimited.by_arrow

    def counted(*args: Any, **options: Any) -> Chunk | None:
        chunk = by_arrow(*args, **options)
        ways["Python" if chunk is None else "Arrow"] += 1
        return chunk

    monkeypatch.setattr(delimited, "by_arrow", counted)
    draw = random.Random(58)
    for _ in range(300):
        separator = draw.choice([",", ";", "\t", "|"])
        monkeypatch.setattr(delimited, "CHUNK_ROWS", draw.choice([1, 2, 100]))
        text = drawn(draw, separator)
        found = delimited.of_blocks(blocks(draw, text), "a", separator, quoted=True)
        if (rows := expected(text, separator)) is None:
            with pytest.raises(Refusal, match=r"^a:\d+: (is not valid CSV|has \d columns?, but line \d+ has \d: make them equal)"):
                rows_of(found)
            ways["refused"] += 1
        else:
            assert rows_of(found) == rows, (text, separator)
        unquoted = [(line, fields.split(separator)) for line, fields in enumerate(text.replace("\r\n", "\n").split("\n"), 1)]
        if len({len(fields) for _, fields in unquoted if any(fields)}) < 2:
            assert rows_of(delimited.of_blocks(blocks(draw, text), "a", separator, quoted=False)) == [
                (line, fields) for line, fields in unquoted if any(fields)
            ], (text, separator)
    assert min(ways[way] for way in ("Arrow", "Python", "refused")) > 50, ways


READ = {
    "the separator of Excel": ("sep=;\r\na;b\n1,5;2\n", [(2, ["a", "b"]), (3, ["1,5", "2"])]),
    "semicolons": ("a;b\n1,5;2\n", [(1, ["a", "b"]), (2, ["1,5", "2"])]),
    "bars": ("a|b\n", [(1, ["a", "b"])]),
    "one column": ("a text\nno more\n", [(1, ["a text"]), (2, ["no more"])]),
    "blanks": ("size  kind\n\n 3.5 \t small\n", [(1, ["size", "kind"]), (3, ["3.5", "small"])]),
    "ends of lines of old computers": ("a,b\r1,2\r", [(1, ["a", "b"]), (2, ["1", "2"])]),
    "nothing": ("\n,\n", []),
}


@pytest.mark.parametrize(("text", "rows"), READ.values(), ids=READ)
def test_the_separator_is_found(text: str, rows: Rows) -> None:
    assert rows_of(delimited.csv_chunks([TextBlock(1, text)], "a")) == rows


LOOKS = {
    "rows that pieces cut": (True, ['a,b\n1,2\n3,"cut\n', "5\n6,7\n8,9\n", '"x,y",z\n'], [["a", "b"], ["1", "2"], ["6", "7"], ["8", "9"], ["x,y", "z"]]),
    "a piece that begins in quotes": (True, ['a,b\n1,"x"\n', 'more",4\n5,6\n"7\n8",9\n'], [["a", "b"], ["1", "x"], ["5", "6"], ["7\n8", "9"]]),
    "a packed file": (True, ['a,b\n"1\n",2\n3,"cut\n', ""], [["a", "b"], ["1\n", "2"]]),
    "a long field": (True, [f'a,b\n"{"x" * 200_000}",2\n3,"cut\n', "4,5\n"], [["a", "b"], ["x" * 200_000, "2"], ["4", "5"]]),
    "a TSV": (False, ['"\t\n1\t2\n', "3\n4\t5\n"], [['"', ""], ["1", "2"], ["4", "5"]]),
}  # fmt: skip


@pytest.mark.parametrize(("quoted", "pieces", "rows"), LOOKS.values(), ids=LOOKS)
def test_a_look_leaves_out_the_rows_that_pieces_cut(quoted: bool, pieces: list[str], rows: list[list[str]]) -> None:
    csv.field_size_limit(2**17)  # as Python has it at the start
    blocks = [TextBlock(0 if at else 1, text) for at, text in enumerate(pieces)]
    assert [fields for _, fields in rows_of(delimited.look_chunks(blocks, "a", quoted=quoted))] == rows
