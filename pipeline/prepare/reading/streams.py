"""Reads files of text of any size, block by block: decompressed, decoded, and cut between lines.

A byte order mark or the user names an encoding other than UTF-8, and a refusal shows what the text says in several.
"""

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import IO, Annotated, NamedTuple, cast

from pydantic import AfterValidator

from pipeline.core import untrusted
from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import reason, shown
from pipeline.prepare.reading import archives
from pipeline.prepare.reading.file_tree import errors_as_refusal

BLOCK_BYTES = 4 * 2**20
LONGEST_LINE = 64 * 2**20
"""Upper bound for the characters of a line, which is held in memory."""
PACKED = (".gz", ".zst")
UTF8 = "utf-8"
MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""The longer marks come first: that of UTF-32 begins with that of UTF-16."""
WITHOUT_MARK = {"utf-16": "utf-16-le", "utf-32": "utf-32-le"}
"""Python reads a text without a byte order mark as these. Its incremental decoders refuse such a text."""
USUAL = ("cp1252", "cp1250", "cp1251", "gbk", "big5", "cp932", "cp949")
"""Usual encodings, by their names for Python. Most texts are valid in several, so a person must recognise their own."""
SPECIAL = {"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape"}
"""Codecs of Python that are not encodings of files."""
SAMPLED_BYTES = 2**16
SHOWN = 10
LOOKED_AT_BYTES = 2 * 2**20
"""Upper bound for the pieces that `look` reads of the middle and of the end of a file. A file of up to three times as much is read as a whole."""


class TextBlock(NamedTuple):
    """Consecutive lines of a file. `line` is the number of the first, from 1, and `text` has all of them, with their ends."""

    line: int
    text: str


class NotDecoded(Refusal):
    """Raised for bytes that are no text in the encoding that was expected. `place` is that of the first of them."""

    def __init__(self, place: str, error: UnicodeDecodeError, encoding: str) -> None:
        self.problem = f"{place}is not {encoding.upper()} (byte 0x{error.object[error.start]:02X})"
        self.readings = readings(error.object, encoding)
        first, second = (error.object[at::2].count(0) for at in (0, 1))
        self.is_binary, self.may_be_utf16 = bool(first or second), second > 10 * first and not encoding.startswith("utf-16")
        super().__init__(self.advising("python -m pipeline set source.encoding="))

    def advising(self, command: str) -> str:
        """Return the message with the end of the command by which a user names another encoding, such as `--encoding `."""
        if self.is_binary and not self.readings:
            as_utf16 = f"if it is one in UTF-16, name its encoding by `{command}utf-16-le`; else " * self.may_be_utf16
            remedy = f"{as_utf16}leave it out, or write its rows into a .csv or .parquet file"
            return f"{self.problem}, and seems to be no text: {remedy}"
        ways = ", `".join(f'{name}` for "{shown(text)}"' for name, text in self.readings.items())
        return f"{self.problem}: name its encoding by `{command}{f'{ways}, or another one' if ways else 'NAME`, an encoding'} that Python knows"


def readings(content: bytes, refused: str) -> dict[str, str]:
    """Return the first characters beyond ASCII and those after them in each of USUAL but `refused` in which the text is valid, by its name."""
    first = re.search(rb"[^\x00-\x7f]", content)
    start = first.start() if first else 0
    sample = content[start : start + SAMPLED_BYTES].rpartition(b"\n")[0] or content[start : start + SAMPLED_BYTES]
    found: dict[str, str] = {}
    for name in USUAL:
        if name == refused:
            continue
        try:
            text = sample.decode(name)
        except UnicodeDecodeError:
            continue
        if not re.search(r"[\0-\x08\x80-\x9f]", text):  # control characters, which no text has
            found[name] = text.splitlines()[0][:SHOWN]
    return found


def known_encoding(name: str) -> str:
    """Return the name of an encoding unchanged. Raises ValueError if Python does not know it."""
    try:
        codec = codecs.lookup(name)
        "".encode(name)
    except (LookupError, ValueError):
        codec = None
    if codec is None or codec.name in SPECIAL:
        raise ValueError(f"is no encoding that Python knows: write {UTF8}, or for example {', '.join(USUAL)} or utf-16")
    return name


Encoding = Annotated[str, AfterValidator(known_encoding)]


def marked(content: bytes) -> str | None:
    """Return the encoding that the byte order mark of a file names, or None."""
    return next((codec for mark, codec in MARKS.items() if content.startswith(mark)), None)


def decoded(content: bytes, encoding: str, place: str = "") -> str:
    """Return the text of a file or line. A byte order mark of UTF-8, UTF-16 or UTF-32 counts more than `encoding`, and is removed.

    Raises NotDecoded if the bytes are not valid. `place` is that of the file, to which the message adds the line; "" adds none.
    """
    codec = marked(content) or encoding
    try:
        return content.decode(codec)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise NotDecoded(f"{place}:{line}: " if place else "", error, codec.removesuffix("-sig")) from None


def unpacked_name(name: str) -> str:
    """Return the name of a file without the suffix of its compression, such as `a.csv` for `a.csv.gz`."""
    return next((name[: -len(suffix)] for suffix in PACKED if name.lower().endswith(suffix)), name)


@contextmanager
def readable(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, decompressed if its name ends with one of PACKED. The path may be that of a file in an archive, such as `data.zip/train.csv`.

    Raises Refusal if it cannot be opened, read or decompressed.
    """
    place = f"source.root: {shown(path)}: cannot be read"
    archive = next((folder for folder in path.parents if folder.is_file()), None)
    try:
        if archive is None:
            untrusted.size_bytes(path)  # raises OSError for a pipe or a device
            file: IO[bytes] = path.open("rb")
        else:
            with errors_as_refusal(archive), archives.open_tree(archive).contents([path.relative_to(archive).as_posix()]) as members:
                file = io.BytesIO(next(members).read())
        with file:
            suffix = path.suffix.lower()
            if suffix == ".zst":
                from pyarrow import CompressedInputStream  # late: it takes 0.2 s

                yield CompressedInputStream(file, "zstd")
            else:
                yield cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if suffix == ".gz" else file
    except OSError as error:  # of damaged gzip and zstd files, too
        raise Refusal(f"{place} ({error.strerror or reason(error)}): make it a readable file") from None
    except (EOFError, zlib.error) as error:
        raise Refusal(f"{place} (it is no complete gzip file, {reason(error)}): create it again") from None


def text_blocks(path: Path, encoding: str = UTF8, *, whole: bool = False) -> Iterator[TextBlock]:
    """Yield the text of a file in blocks of whole lines, of some megabytes. An empty file has one empty block.

    Raises Refusal if the file cannot be read, and like `decoded_blocks`.
    """
    if LOOK.get() and not whole and path.is_file() and path.suffix.lower() not in (*PACKED, ".json"):
        yield from look(path, encoding)
        return
    with readable(path) as file:
        yield from decoded_blocks(file, encoding, f"source.root: {shown(path)}")


def decoded_blocks(file: IO[bytes], encoding: str, place: str, block_bytes: int | None = None) -> Iterator[TextBlock]:
    """Yield the text of an open file in blocks of whole lines, of BLOCK_BYTES by default. A byte order mark counts more than `encoding`.

    Raises Refusal, with the line after `place`, if the text is not in the encoding, has a NUL character, or a line of more than LONGEST_LINE characters.
    """
    block_bytes = block_bytes or BLOCK_BYTES
    content, line, rest = file.read(block_bytes), 1, ""
    codec = marked(content) or WITHOUT_MARK.get(codecs.lookup(encoding).name, encoding)
    decoder = codecs.getincrementaldecoder(codec)()
    while True:
        following = file.read(block_bytes) if content else b""
        try:
            text = rest + decoder.decode(content, final=not following)
        except UnicodeDecodeError as error:
            decoder.setstate((b"", decoder.getstate()[1]))  # the bytes that it held are in `error.object`
            before = rest + decoder.decode(error.object[: error.start])
            raise NotDecoded(f"{place}:{line + before.count(chr(10))}: ", error, codec.removesuffix("-sig")) from None
        end = len(text) if not following else 1 + (text.rfind("\n") if "\n" in text else text.rfind("\r", 0, -1))
        if (nul := text.find("\0", 0, end)) >= 0:
            problem = "has a NUL character, so it is no text: remove it, or leave out the file"
            raise Refusal(f"{place}:{line + text.count(chr(10), 0, nul)}: {problem}")
        if end or not following:
            yield TextBlock(line, text[:end])
        line, rest, content = line + text.count("\n", 0, end), text[end:], following
        if len(rest) > LONGEST_LINE:
            raise Refusal(f"{place}:{line}: has a line of more than {LONGEST_LINE} characters: divide it")
        if not following:
            return


def num_lines(path: Path) -> int:
    """Return the number of lines of a file that is in no archive, decompressed. They are counted once, unless the file is changed.

    Raises Refusal if it cannot be read.
    """
    with readable(path):  # an error of its state is a Refusal, too
        return counted_lines(path, archives.version_of(path))


@lru_cache(2**16)
def counted_lines(path: Path, version: archives.Version) -> int:  # noqa: ARG001  # a part of the key of the cache
    count, last = 0, b"\n"
    with readable(path) as file:
        while block := file.read(BLOCK_BYTES):
            count, last = count + block.count(b"\n"), block
    return count + (not last.endswith(b"\n"))


def read_text(blocks: Iterable[TextBlock], place: str, most_characters: int, remedy: str) -> str:
    """Return a whole text, such as a document. Raises Refusal, with the place and the remedy, if it has more than `most_characters`."""
    parts, size = list[str](), 0
    for block in blocks:
        parts.append(block.text)
        size += len(block.text)
        if size > most_characters:
            raise Refusal(f"{place}: has more than {most_characters} characters in one document: {remedy}")
    return "".join(parts)


class Look:
    """Which share of the files was read within `looking`: the bytes or rows that were read, and those that there are, by path."""

    def __init__(self) -> None:
        self.parts = dict[Path, tuple[int, int]]()

    def share(self, paths: Iterable[Path] = ()) -> float:
        """Return the share of these files that was read, at most 1; by default, that of all."""
        parts = [self.parts[path] for path in paths if path in self.parts] or [*self.parts.values()]
        read, every = (sum(numbers) for numbers in zip(*parts, strict=True)) if parts else (1, 1)
        return min(1.0, read / max(1, every))


LOOK: ContextVar[Look | None] = ContextVar("look", default=None)


@contextmanager
def looking() -> Iterator[Look]:
    """Within this context, only some pieces of large files are read: see `look`. Gives what was read."""
    token = LOOK.set(found := Look())
    try:
        yield found
    finally:
        LOOK.reset(token)


def look(path: Path, encoding: str) -> list[TextBlock]:
    """Return the text of a file or, if it is large, whole lines of its beginning, middle and end; if it is packed, only of its beginning.

    The line numbers of the last two are unknown, and are 0. An empty block says that more text follows. Raises Refusal as `text_blocks` does.
    """
    place, is_file = f"source.root: {shown(path)}", path.is_file()
    with readable(path) as file:
        start = file.read(3 * LOOKED_AT_BYTES + 1)
        codec = (marked(start) or encoding).removesuffix("-sig")
        if len(start) <= 3 * LOOKED_AT_BYTES:
            found = list(decoded_blocks(io.BytesIO(start), encoding, place))
        else:
            with readable(path) as beginning:  # anew: `start` may end within a character
                found = [next(decoded_blocks(beginning, encoding, place, LOOKED_AT_BYTES)), TextBlock(0, "")]
            can_seek = is_file and path.suffix.lower() not in PACKED and "\n".encode(codec) == b"\n"  # else no end of a line can be found
            size_bytes = untrusted.size_bytes(path) if can_seek else 0
            for at in (size_bytes // 2, size_bytes - LOOKED_AT_BYTES) if can_seek else ():
                file.seek(at)
                piece = file.read(LOOKED_AT_BYTES).partition(b"\n")[2].rpartition(b"\n")
                lines = decoded_blocks(io.BytesIO(b"".join(piece[:2])), codec, f"{place}, in the middle or at the end")
                found += [block._replace(line=0) for block in lines]
    if is_file and (noted := LOOK.get()):
        read_bytes = sum(len(block.text.encode(codec, "replace")) for block in found)
        noted.parts[path] = read_bytes, untrusted.size_bytes(path)
    return found
