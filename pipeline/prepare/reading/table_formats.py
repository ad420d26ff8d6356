"""Which format a table has: by its name or, if that says nothing, by its first lines."""

from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path, PurePath

from pipeline.core.refusal import Refusal
from pipeline.prepare.reading import archives, delimited, json_rows, parquet, streams
from pipeline.prepare.reading.class_folders import IMAGE_SUFFIXES
from pipeline.prepare.reading.streams import unpacked_name

JSON_LINES = (".jsonl", ".ndjson")
JSON = (*JSON_LINES, ".json")
TEXT = (".tsv", ".csv", *JSON, ".data", ".dat")
FORMATS = (*TEXT, parquet.SUFFIX)
"""The suffixes of tables. In a `.tsv` no field is quoted; in a `.csv`, `.data` or `.dat` a field in quotes may have line breaks, and the
separator is found. A file with another suffix is one of these formats if its lines are rows: see `format_of_content`."""
NO_LINES = (
    *(*FORMATS, *IMAGE_SUFFIXES, *archives.SUFFIXES, ".npy", ".npz", ".h5", ".pkl", ".arff"),
    *(".pdf", ".doc", ".docx", ".xlsx", ".pptx", ".mid", ".wav", ".mp3", ".mp4"),
)
"""The suffixes of files whose lines are no samples."""
FEWEST_LINES, FEWEST_FIELDS = 20, 3
"""Lines of text may have commas or tabs by chance, but not so many lines equally many of them."""
DOCUMENTS = ("readme", "license", "licence", "_about", "citation", "changelog")
"""The beginnings of the names of files that describe a dataset."""
TABLES = ", ".join(FORMATS)


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
    """Return `.csv` if a file called `.tsv` can only be read with fields in quotes: if its lines have different numbers of tabs, but its rows have
    equally many fields; else `.tsv`.
    """
    with suppress(Refusal):  # as reading it will say, too
        if has_quotes(path) and not has_equal_rows(path, quoted=False) and has_equal_rows(path, quoted=True):
            return ".csv"
    return ".tsv"


def has_quotes(path: Path) -> bool:
    """Return True if a field between tabs may begin with a quote."""
    with streams.readable(path) as file:
        blocks = iter(partial(file.read, streams.BLOCK_BYTES), b"")
        return any(b'\t"' in block or b'\n"' in block or block.startswith(b'"') for block in blocks)


def has_equal_rows(path: Path, *, quoted: bool) -> bool:
    with streams.readable(path) as file:
        return delimited.are_equal(file, "\t", quoted=quoted)


@lru_cache(2**12)
def format_of_content(path: Path, version: archives.Version) -> str:  # noqa: ARG001  # a part of the key of the cache
    """Return the suffix of the format of a file of text whose lines are rows, by the first SAMPLED_BYTES; "" if they are not.

    Such rows are objects of JSON, mostly numbers, or at least three fields in each of FEWEST_LINES lines. Whether fields are in quotes decides
    between `.tsv` and `.csv`.
    """
    try:
        with streams.readable(path) as file:
            start = file.read(streams.SAMPLED_BYTES + 1)
    except Refusal:  # as reading it will say, too
        return ""
    text = start.decode(streams.marked(start) or "latin-1", "replace")  # in any encoding, separators and digits are ASCII
    if "\0" in text:
        return ""
    lines = [line for line in text.split("\n")[: -1 if len(start) > streams.SAMPLED_BYTES else None] if line.strip()]
    if len(lines) > 1 and all(line.lstrip().startswith("{") and json_rows.is_nested(line) for line in lines):
        return ".jsonl"
    tabs = {line.count("\t") for line in lines}
    is_long = len(lines) >= FEWEST_LINES
    if is_long and len(tabs) == 1 and tabs.pop() + 1 >= FEWEST_FIELDS:
        return ".csv" if '"' in text and delimited.is_regular("\n".join(lines), "\t") else ".tsv"
    are_fields = delimited.holds_numbers(text) or (is_long and delimited.num_fields(text) >= FEWEST_FIELDS)
    return ".csv" if are_fields else ""


def is_document(name: str | PurePath) -> bool:
    plain = PurePath(name).name.lower()
    return plain.startswith(DOCUMENTS) or plain.lstrip("_").startswith(DOCUMENTS)
