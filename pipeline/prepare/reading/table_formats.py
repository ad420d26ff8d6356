"""Which format a table has: by its name or, if that says nothing, by its first lines."""

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path, PurePath

from pipeline.core.refusal import Refusal
from pipeline.prepare.reading import archives, delimited, json_rows, parquet, streams
from pipeline.prepare.reading.class_folders import IMAGE_SUFFIXES
from pipeline.prepare.reading.streams import unpacked_name

JSON_LINES = (".jsonl", ".ndjson")
JSON = (*JSON_LINES, ".json")
TEXT = (".tsv", ".csv", *JSON, ".data", ".dat")
FORMATS = (*TEXT, parquet.SUFFIX)
"""The suffixes of tables. In a `.csv`, `.data` or `.dat` a field in quotes may have line breaks, and the separator is found; in a `.tsv` no field is
quoted, but see `format_of_tsv`. A file with another suffix is one of these formats if its lines are rows: see `format_of_content`."""
NO_LINES = (
    *(".csv", ".tsv", *JSON, parquet.SUFFIX, *IMAGE_SUFFIXES, *archives.SUFFIXES, ".npy", ".npz", ".h5", ".pkl", ".arff"),
    *(".pdf", ".doc", ".docx", ".xlsx", ".pptx", ".mid", ".wav", ".mp3", ".mp4"),
)
"""The suffixes of files whose lines are no samples."""
FEWEST_ROWS, FEWEST_FIELDS = 20, 3
"""Lines of text may have separators by chance, but not so many lines equally many of them."""
JUDGED_BYTES, JUDGED_LINES = 16 * 2**20, 100
"""The beginning of a `.tsv` decides whether its fields are in quotes, and the first lines of another file whether they are mostly numbers."""
DOCUMENTS = ("readme", "license", "licence", "_about", "citation", "changelog")
"""The beginnings of the names of files that describe a dataset."""
TABLES = ", ".join(FORMATS)
FRACTION = re.compile(r"\d\.\d")


def named_suffix(path: PurePath) -> str:
    """Return the suffix by which a file is called a table, in lower case, such as `.csv` also for `A.CSV.gz`, or "" if it is not."""
    name = unpacked_name(path.name.lower())
    return next((suffix for suffix in FORMATS if name.endswith(suffix)), "")


def suffix_of(path: Path) -> str:
    """Return the suffix of the format of a table: that in its name or, if this has none, that of its content; "" if the file is no table."""
    if (suffix := named_suffix(path)) == ".tsv" and path.is_file():
        return format_of_tsv(path, archives.version_of(path))
    if suffix or not path.is_file() or unpacked_name(path.name.lower()).endswith(NO_LINES) or is_document(path):
        return suffix
    return format_of_content(path, archives.version_of(path))


@lru_cache(2**12)
def format_of_tsv(path: Path, version: archives.Version) -> str:  # noqa: ARG001  # a part of the key of the cache
    """Return `.csv` if a file called `.tsv` can only be read with fields in quotes: if its lines, in the first JUDGED_BYTES, have different numbers of
    tabs, but its rows have equally many fields; else `.tsv`.
    """
    text, is_cut = beginning(path, JUDGED_BYTES)
    lines = text.split("\n")[: -1 if is_cut else None]
    are_equal = len({line.count("\t") for line in lines if line.strip("\r\t")}) <= 1
    return ".tsv" if '"' not in text or are_equal or not delimited.have_equal_fields(text, "\t", is_cut=is_cut) else ".csv"


@lru_cache(2**12)
def format_of_content(path: Path, version: archives.Version) -> str:  # noqa: ARG001  # a part of the key of the cache
    """Return the suffix of the format of a file of text whose lines are rows, in the first SAMPLED_BYTES; "" if they are not.

    Such rows are objects of JSON, three or more fields with tabs between them, mostly numbers, or three or more fields with another separator in
    FEWEST_ROWS lines. Lines that `line_separator` divides otherwise are no rows, such as a label before a text, unless they have fractions.
    Whether fields are in quotes decides between `.tsv` and `.csv`.
    """
    text, is_cut = beginning(path, streams.SAMPLED_BYTES)
    lines = [line for line in text.split("\n")[: -1 if is_cut else None] if line.strip()]
    text = "\n".join(lines)
    if len(lines) < 2 or "\0" in text:
        return ""
    if all(line.lstrip().startswith("{") and json_rows.is_nested(line) for line in lines):
        return ".jsonl"
    tabs = {line.count("\t") for line in lines}
    if len(tabs) == 1 and tabs.pop() + 1 >= FEWEST_FIELDS:
        return ".csv" if '"' in text and delimited.is_regular(text, "\t") else ".tsv"
    return ".csv" if has_fields(text, lines) else ""


def has_fields(text: str, lines: Sequence[str]) -> bool:
    """Return True if the lines of a text are rows of numbers, or commas, semicolons or bars divide them, and nothing else does."""
    try:
        otherwise = delimited.line_separator(lambda: enumerate(lines, 1), "")
    except delimited.WrongLines:
        return False
    if otherwise in (None, ";", "|") and len(lines) >= FEWEST_ROWS and delimited.num_fields(text) >= FEWEST_FIELDS:
        return True
    beginning_of_text = "\n".join(lines[:JUDGED_LINES])
    may_be_numbers = otherwise in (None, ";", "|") or (otherwise == " " and FRACTION.search(beginning_of_text))
    return bool(may_be_numbers) and delimited.holds_numbers(beginning_of_text)


def beginning(path: Path, size: int) -> tuple[str, bool]:
    """Return the text of the first bytes of a file, and whether it is longer. Its letters may be wrong, but separators and digits are ASCII."""
    try:
        with streams.readable(path) as file:
            start = file.read(size + 1)
    except Refusal:  # as reading it will say, too
        return "", False
    return start[:size].decode(streams.marked(start) or "latin-1", "replace"), len(start) > size


def is_document(name: str | PurePath) -> bool:
    plain = PurePath(name).name.lower()
    return plain.startswith(DOCUMENTS) or plain.lstrip("_").startswith(DOCUMENTS)
