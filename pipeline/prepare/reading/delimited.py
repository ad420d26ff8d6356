"""Rows of delimited text (CSV, TSV, lines of fields) as columns. Python's `csv` says what a row is; Arrow reads the blocks in which both agree."""

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.core.cells import as_number
from pipeline.core.refusal import Refusal, counted
from pipeline.core.untrusted import reason
from pipeline.prepare.reading.arrow_cells import mask
from pipeline.prepare.reading.class_folders import IMAGE_SUFFIXES
from pipeline.prepare.reading.streams import TextBlock

LONGEST_FIELD = 2**20
"""Upper bound for the number of characters of a field."""
SEPARATORS = ",;\t|"
BLANKS = " "
"""Any number of blanks and tabs, as a separator."""
MOSTLY = 0.75
"""If no sign divides all rows into equally many fields, one that divides more than this share of them is the separator, and the others are mistakes."""
SAMPLED_CHARACTERS = 2**16
"""The number of characters of a `.csv` in which its separator is searched for."""
EXCEL = re.compile(r"sep=(.)\r?\n")
"""The first line by which a table tells Excel its separator."""
CHUNK_ROWS = 4096
Rows = Iterable[tuple[int, Sequence[str]]]
"""The number of the line and the fields of each row."""


class Chunk(NamedTuple):
    """Consecutive rows: `lines` (n,) has the number of the line of each, from 1, and `columns` an Arrow array of strings for each field."""

    lines: NDArray[np.int64]
    columns: Sequence[Any]

    def row(self, at: int) -> list[str]:
        return [column[at].as_py() for column in self.columns]


def csv_chunks(blocks: Iterable[TextBlock], place: str, *, is_cut: bool = False) -> Generator[Chunk]:
    """Yield the rows of a CSV file. A field in quotes may have line breaks; the separator is found. Rows without a value are left out.
    If `is_cut`, the text ends in the middle of the file, and its last row is left out if it is not whole.

    Raises Refusal, with the line after `place`, if the file is no valid CSV, or if a row has more or fewer fields than the first.
    """
    csv.field_size_limit(LONGEST_FIELD)
    blocks = iter(blocks)
    first = next(blocks)
    if excel := EXCEL.match(first.text):
        first = TextBlock(first.line + 1, first.text[excel.end() :])
    separator = excel[1] if excel else csv_separator(first.text)
    blocks = chain([first], blocks)
    if separator == BLANKS:
        yield from of_rows(((line, divided(text)) for line, text in lines_of(blocks)), place)
    else:
        yield from of_blocks(blocks, place, separator, quoted=True, is_cut=is_cut)


def look_chunks(blocks: Iterable[TextBlock], place: str, *, quoted: bool) -> Generator[Chunk]:
    """Yield the rows of blocks from the beginning, the middle and the end of a file, for a look at it: of the first block all, and of the others, which may
    begin and end within a row, those with as many fields.
    """
    csv.field_size_limit(LONGEST_FIELD)
    first, *others = blocks
    separator, width = csv_separator(EXCEL.sub("", first.text, count=1)) if quoted else "\t", Width(place)
    for chunk in csv_chunks([first], place, is_cut=bool(others)) if quoted else of_blocks([first], place, separator, quoted=False):
        width.refuse_other_number(int(chunk.lines[0]), len(chunk.columns))
        yield chunk
    for block in others:
        if separator != BLANKS and (found := by_arrow(block.text, 0, separator, width, quoted=quoted)):
            yield Chunk(np.zeros_like(found.lines), found.columns)
            continue
        if quoted and separator != BLANKS:
            rows = rows_of_piece(block.text, separator, width.fields)
        else:
            rows = [divided(text) if quoted else text.split(separator) for _, text in lines_of([block])]
        yield from of_rows(((0, fields) for fields in rows if len(fields) == width.fields), place, width)


def rows_of_piece(text: str, separator: str, num_fields: int) -> list[Sequence[str]]:
    """Return the rows of a piece of a CSV, which may begin within a field in quotes: [] if it has no rows of so many fields either way."""
    for beginning in (text, f'"{text}'):
        broken = list[tuple[int, str, bool]]()
        rows = [fields for _, fields in csv_rows(beginning, 0, separator, broken) if any(fields)][1:]
        if all(is_over for _, _, is_over in broken) and all(len(fields) == num_fields for fields in rows):
            return rows
    return []


def lines_of(blocks: Iterable[TextBlock]) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line, without its end."""
    for block in blocks:
        for number, line in enumerate(block.text.split("\n")[: -1 if not block.text or block.text.endswith("\n") else None], block.line):
            yield number, line.removesuffix("\r")


class Width:
    """The number of fields of the first row, which every row must have. `remedy` is for one with another number."""

    def __init__(self, place: str, remedy: str = "make them equal") -> None:
        self.place, self.remedy, self.line, self.fields = place, remedy, 0, 0

    def refuse_other_number(self, line: int, fields: int) -> None:
        if not self.fields:
            self.line, self.fields = line, fields
        if fields != self.fields:
            raise Refusal(f"{self.place}:{line}: has {counted(fields, 'column')}, but line {self.line} has {self.fields}: {self.remedy}")


def of_rows(rows: Rows, place: str, width: Width | None = None) -> Generator[Chunk]:
    """Yield the rows that have a value, some at a time."""
    width = width or Width(place)
    filled = ((line, fields) for line, fields in rows if any(fields))
    while several := list(islice(filled, CHUNK_ROWS)):
        for line, fields in several:
            width.refuse_other_number(line, len(fields))
        lines, every = zip(*several, strict=True)
        yield Chunk(np.array(lines), [pa.array(column, pa.string()) for column in zip(*every, strict=True)])


def of_blocks(blocks: Iterable[TextBlock], place: str, separator: str, *, quoted: bool, is_cut: bool = False) -> Generator[Chunk]:
    """Yield the rows of blocks of text. A row of which a block has only the beginning is read with the next one."""
    unquoted = "make them equal; if fields are in quotes, call the file .csv"
    width, line, rest, broken = Width(place) if quoted else Width(place, unquoted), 1, "", list[tuple[int, str, bool]]()
    for block in blocks:
        line, text = (line, rest + block.text) if rest else block
        rest, broken = "", []
        if (chunk := by_arrow(text, line, separator, width, quoted=quoted)) is not None:
            if len(chunk.lines):
                yield chunk
            continue
        split = ((number, fields.split(separator)) for number, fields in lines_of([TextBlock(line, text)]))
        rows: Rows = csv_rows(text, line, separator, broken) if quoted else split
        yield from of_rows(rows, place, width)
        if broken:
            (line, problem, is_over), start = broken[0], line
            if not is_over:
                break
            rest = "".join(io.StringIO(text, newline="").readlines()[line - start :])
    if broken and not (is_over and is_cut):
        raise Refusal(f"{place}:{line}: is not valid CSV ({problem}): quote fields with line breaks, quotes or commas")


def csv_rows(text: str, line: int, separator: str, broken: list[tuple[int, str, bool]]) -> Rows:
    """Yield the rows of a text. If one of them is no valid CSV, add its line, what is wrong, and whether the text ends within it, and end."""
    reader, start = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True), line
    try:
        for fields in reader:
            yield line, fields
            line = start + reader.line_num  # where the next row begins: a quoted field may have line breaks
    except csv.Error as error:
        broken.append((line, reason(error), reader.line_num == len(io.StringIO(text, newline="").readlines())))


def by_arrow(text: str, line: int, separator: str, width: Width, *, quoted: bool) -> Chunk | None:
    """Return the rows of a text in which each line is one row, as Arrow reads them; None if Python must say what its rows are."""
    if (data := one_row_a_line(text, separator, quoted=quoted)) is None:
        return None
    from pyarrow import csv as arrow_csv

    num_fields = width.fields
    if not num_fields:
        first = text.split("\n", 1)[0].rstrip("\r")
        try:
            num_fields = len(next(csv.reader([first], delimiter=separator, strict=True)) if quoted else first.split(separator))
        except csv.Error:
            return None
    names = [str(number) for number in range(num_fields)]
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(data),
            arrow_csv.ReadOptions(use_threads=False, column_names=names, block_size=len(data) + 1),
            arrow_csv.ParseOptions(delimiter=separator, quote_char='"' if quoted else False, newlines_in_values=True),
            arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False, check_utf8=False),
        )
    except pa.ArrowInvalid:
        return None
    columns, num_lines = [pa.concat_arrays(column.chunks) for column in table.columns], data.count(b"\n")
    may_be_long = (column for column in columns if column.nbytes > LONGEST_FIELD)
    if table.num_rows != num_lines or any(pc.max(pc.binary_length(column)).as_py() > LONGEST_FIELD for column in may_be_long):
        return None
    lines = np.arange(line, line + num_lines)
    filled = np.zeros(num_lines, bool)
    for column in columns:
        if not filled.all():
            filled |= mask(pc.not_equal(column, ""))
    chunk = Chunk(lines, columns) if filled.all() else Chunk(lines[filled], [column.filter(pa.array(filled)) for column in columns])
    if len(chunk.lines):
        width.refuse_other_number(int(chunk.lines[0]), num_fields)
    return chunk


def one_row_a_line(text: str, separator: str, *, quoted: bool) -> bytes | None:
    """Return a text, the end of its last line included, if each of its lines is certainly one row."""
    if not text or text[0] in "\r\n" or "\n\n" in text or "\n\r\n" in text or not separator.isascii():
        return None
    text = text if text.endswith("\n") else f"{text}\n"
    try:
        data = text.encode()
    except UnicodeEncodeError:  # a surrogate
        return None
    codes = np.frombuffer(data, np.uint8)
    has_lone_returns = ((codes[:-1] == ord("\r")) & (codes[1:] != ord("\n"))).any()
    return None if has_lone_returns or (quoted and not is_regular(text, separator)) else data


def is_regular(text: str, separator: str) -> bool:
    """Return True if each quote in a text is on one side of a field."""
    if '"' not in text:
        return True
    text = f"\n{text}"
    alone = (f'{separator}"{separator}', f'\n"{separator}', f'{separator}"\n', f'{separator}"\r', '""')
    beside = sum(text.count(pair) for pair in (f'{separator}"', f'"{separator}', '\n"', '"\n', '"\r\n'))
    quotes = text.count('"')
    return quotes == beside and quotes % 2 == 0 and not any(each in text for each in alone)


def csv_separator(text: str) -> str:
    """Return the first of SEPARATORS by which all first rows have the same number of fields, at least two; if none does, that by which most have it, or a comma.

    BLANKS separate fields only if more columns are then numbers than by another sign: they may also be words of one text.
    """
    found, num_numbers, nearly, most = "", 0, SEPARATORS[0], MOSTLY
    for sign in SEPARATORS + BLANKS:
        if found and sign != BLANKS:
            continue
        try:
            rows = first_rows(text, sign)
        except csv.Error:
            continue
        counts = {len(fields) for fields in rows}
        if len(counts) == 1 and counts != {1} and (sign != BLANKS or sum(map(all, numbers_in(rows))) > num_numbers):
            found, num_numbers = sign, sum(map(all, numbers_in(rows)))
        width, times = Counter(map(len, rows)).most_common(1)[0] if rows else (1, 0)
        if sign != BLANKS and width > 1 and len(rows[0]) > 1 and times > most * len(rows):
            nearly, most = sign, times / len(rows)
    return found or nearly


def divided(line: str) -> list[str]:
    """Return the fields of a line between BLANKS; one in quotes may have some. Raises csv.Error."""
    return next(csv.reader([line.replace("\t", " ").strip()], delimiter=" ", skipinitialspace=True)) if '"' in line else line.split()


def first_rows(text: str, sign: str) -> list[list[str]]:
    """Return the fields of the first rows that are not blank, divided by `sign`. Raises csv.Error."""
    start = text[:SAMPLED_CHARACTERS]
    rows = (
        [divided(line) for line in start.split("\n")]
        if sign == BLANKS
        else list(csv.reader(io.StringIO(start, newline=""), delimiter=sign))
    )
    complete = rows if start == text else rows[:-1]  # the last row may end in the middle
    return [fields for fields in complete if any(fields)]


def numbers_in(rows: Sequence[Sequence[str]]) -> list[tuple[bool, ...]]:
    """Return for each column of `rows` which of its fields below the first are numbers."""
    return list(zip(*([as_number(field) is not None for field in fields] for fields in rows[1:]), strict=True))


def have_equal_fields(text: str, separator: str, *, is_cut: bool) -> bool:
    """Return True if a text is valid CSV, and all its rows have equally many fields; but for the last one if the text `is_cut`."""
    csv.field_size_limit(LONGEST_FIELD)
    counts = list[int]()
    try:
        counts.extend(len(fields) for fields in csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True) if any(fields))
    except csv.Error:
        return is_cut and len({*counts}) == 1
    return len({*(counts[:-1] if is_cut else counts)}) == 1


def num_fields(text: str) -> int:
    """Return the number of fields between SEPARATORS in each of the first rows; 0 if they have different numbers, or only BLANKS divide them."""
    separator = csv_separator(text)
    try:
        counts = {len(fields) for fields in first_rows(text, separator)}
    except csv.Error:
        return 0
    return counts.pop() if len(counts) == 1 and separator != BLANKS else 0


def holds_numbers(text: str) -> bool:
    """Return True if more than half of the fields of the beginning of a file, by its name no table, are numbers."""
    try:
        found = numbers_in(first_rows(text, csv_separator(text)))
    except (csv.Error, ValueError):  # rows of different lengths
        return False
    return len(found) > 1 and 2 * sum(map(sum, found)) > sum(map(len, found))


FIELD_SEPARATORS = ("\t", " ||| ", "|||", ";", "|")
TAG, MOST_TAGS = "@", 100
"""TAG stands between the text of a line and its label, if the text has several words and a file has at most MOST_TAGS labels."""
LABEL_WORD = re.compile(r"__label__\S+|-?\d+|[A-Z]+:\w+")
"""A label before the text: as fastText writes it, a whole number, or a class with a subclass such as `NUM:date`."""
SEVERAL = "__label__"
MOST_OTHERS = 0.05
"""If fewer lines have another number of fields, these lines are mistakes."""
FEWEST_LINES = 20


class WrongLines(Refusal):
    """Raised for a file whose lines have labels, and one of them too many or too few fields."""


def line_chunks(read: Callable[[], Iterable[TextBlock]], place: str) -> Generator[Chunk]:
    """Yield the fields of all lines that are not blank; the whole line is one field if nothing divides all lines.

    `read` returns the text of the file, from its beginning at each call. `place` names it in messages. Raises WrongLines if a line has several
    labels, or like `line_separator`.
    """
    sign = line_separator(lambda: filled_lines(read()), place)

    def rows() -> Iterator[tuple[int, list[str]]]:
        for number, line in filled_lines(read()):
            first = line.split(" ", 1)[0]
            parts = line.split(sign, 1 if sign == " " and LABEL_WORD.fullmatch(first) else -1) if sign else [line]
            fields = [field.strip() for field in parts] if sign else parts
            if sign == " " and fields[1].startswith(SEVERAL):
                raise WrongLines(f"{place}:{number}: has several labels, which no source reads: leave one in each line")
            yield number, fields

    yield from of_rows(rows(), place)


def filled_lines(blocks: Iterable[TextBlock]) -> Iterator[tuple[int, str]]:
    """Yield the number, from 1, and the text of each line that is not blank."""
    return ((number, line) for number, line in lines_of(blocks) if line.strip())


def line_separator(read: Callable[[], Iterable[tuple[int, str]]], place: str) -> str | None:
    """Return what divides all lines that are not blank into equally many fields, or None if nothing does.

    It is one of FIELD_SEPARATORS, a comma or a space if all lines begin with the name of an image, but for a line of names, or the space after
    the first word if all first words are like LABEL_WORD, or TAG before a few labels. `read` returns the lines with their numbers, at each call. Raises WrongLines, with the
    line, if it is a tab or a bar that divides all lines but a few.
    """
    counts = {sign: Counter[int]() for sign in (*FIELD_SEPARATORS, TAG, ",", " ")}
    are_images, are_labels, num_lines = {",": True, " ": True}, True, 0
    for num_lines, (_, line) in enumerate(read(), 1):
        for sign, found in counts.items():
            found[line.count(sign)] += 1
            if sign in are_images and num_lines > 1:
                are_images[sign] &= line.split(sign, 1)[0].strip().lower().endswith(IMAGE_SUFFIXES)
        are_labels = are_labels and " " in line and bool(LABEL_WORD.fullmatch(line.split(" ", 1)[0]))
    for sign in FIELD_SEPARATORS:
        most, times = counts[sign].most_common(1)[0] if num_lines else (0, 0)
        if most and times == num_lines:
            return sign
        if most and sign != ";" and num_lines >= FEWEST_LINES and num_lines - times <= MOST_OTHERS * num_lines:
            number, line = next((number, line) for number, line in read() if line.count(sign) != most)
            raise WrongLines(f"{place}:{number}: has {line.count(sign) + 1} fields, but most lines have {most + 1}: make them equal")
    for sign, fits in are_images.items():
        if fits and num_lines > 1 and len(counts[sign].keys() | {0}) == 2:
            return sign
    if num_lines and are_labels:
        return " "
    return TAG if counts[TAG].keys() == {1} and are_tagged(read()) else None


def are_tagged(lines: Iterable[tuple[int, str]]) -> bool:
    """Return True if TAG is between several words and one of a few labels in each line."""
    tags = set[str]()
    for _, line in lines:
        text, _, tag = line.partition(TAG)
        tags.add(tag.strip())
        if " " not in text.strip() or len(tags) > MOST_TAGS:
            return False
    return True
