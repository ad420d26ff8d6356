"""Reads files of text of any size, block by block: decompressed, decoded, and cut between lines."""

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, cast

from pipeline.core import untrusted
from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import reason, shown
from pipeline.prepare.reading import archives, encodings
from pipeline.prepare.reading.file_tree import errors_as_refusal
from pipeline.prepare.reading.looking import LOOK

BLOCK_BYTES = 4 * 2**20
LONGEST_LINE = 64 * 2**20
"""Upper bound for the characters of a line, which is held in memory."""
PACKED = (".gz", ".zst")
WITHOUT_MARK = {"utf-16": "utf-16-le", "utf-32": "utf-32-le"}
"""Python reads a text without a byte order mark as these. Its incremental decoders refuse such a text."""


class TextBlock(NamedTuple):
    """Consecutive lines of a file. `line` is the number of the first, from 1, and `text` has all of them, with their ends."""

    line: int
    text: str


def unpacked_name(name: str) -> str:
    """Return the name of a file without the suffix of its compression, such as `a.csv` for `a.csv.gz`."""
    return next((name[: -len(suffix)] for suffix in PACKED if name.lower().endswith(suffix)), name)


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, decompressed if its name ends with one of PACKED. The path may be that of a file in an archive, such as `data.zip/train.csv`."""
    archive = next((folder for folder in path.parents if folder.is_file()), None)
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


@contextmanager
def readable(path: Path) -> Iterator[IO[bytes]]:
    """Open a file like `opened`. Raises Refusal if it cannot be opened, read or decompressed."""
    place = f"source.root: {shown(path)}: cannot be read"
    try:
        with opened(path) as file:
            yield file
    except OSError as error:  # of damaged gzip and zstd files, too
        raise Refusal(f"{place} ({error.strerror or reason(error)}): make it a readable file") from None
    except (EOFError, zlib.error) as error:
        raise Refusal(f"{place} (it is no complete gzip file, {reason(error)}): create it again") from None


def text_blocks(path: Path, encoding: str = encodings.UTF8, *, whole: bool = False) -> Iterator[TextBlock]:
    """Yield the text of a file in blocks of whole lines, of some megabytes. An empty file has one empty block.

    A byte order mark counts more than `encoding`. Raises Refusal, with the line, if the file cannot be read, is not in the encoding, has a NUL
    character, or a line of more than LONGEST_LINE characters.
    """
    if LOOK.get() and not whole and path.is_file() and path.suffix.lower() not in (*PACKED, ".json"):
        yield from look(path, encoding)
        return
    place = f"source.root: {shown(path)}"
    with readable(path) as file:
        for block in decoded_blocks(file, encoding, place):
            refuse_nul(block, place)
            yield block


def refuse_nul(block: TextBlock, place: str) -> None:
    if "\0" in block.text:
        line = block.line + block.text.count("\n", 0, block.text.index("\0"))
        raise Refusal(f"{place}{f':{line}' if block.line else ''}: has a NUL character, so it is no text: remove it, or leave out the file")


def decoded_blocks(file: IO[bytes], encoding: str, place: str) -> Iterator[TextBlock]:
    content, line, rest = file.read(BLOCK_BYTES), 1, ""
    codec = encodings.marked(content) or WITHOUT_MARK.get(codecs.lookup(encoding).name, encoding)
    decoder = codecs.getincrementaldecoder(codec)()
    while True:
        following = file.read(BLOCK_BYTES) if content else b""
        try:
            text = rest + decoder.decode(content, final=not following)
        except UnicodeDecodeError as error:
            decoder.setstate((b"", decoder.getstate()[1]))  # the bytes that it held are in `error.object`
            before = rest + decoder.decode(error.object[: error.start])
            raise encodings.NotDecoded(f"{place}:{line + before.count(chr(10))}: ", error, codec.removesuffix("-sig")) from None
        end = len(text) if not following else 1 + (text.rfind("\n") if "\n" in text else text.rfind("\r", 0, -1))
        if end or not following:
            yield TextBlock(line, text[:end])
        line, rest, content = line + text.count("\n", 0, end), text[end:], following
        if len(rest) > LONGEST_LINE:
            raise Refusal(f"{place}:{line}: has a line of more than {LONGEST_LINE} characters: divide it")
        if not following:
            return


def num_lines(path: Path) -> int:
    """Return the number of lines of a file, decompressed. Raises Refusal if it cannot be read."""
    count, last = 0, b"\n"
    with readable(path) as file:
        while block := file.read(BLOCK_BYTES):
            count, last = count + block.count(b"\n"), block
    return count + (not last.endswith(b"\n"))


def read_text(path: Path, encoding: str, most_bytes: int, remedy: str) -> str:
    """Return the whole text of a file, such as a document. Raises Refusal as `text_blocks` does, and with the remedy if it has more than `most_bytes`."""
    parts, size_bytes = list[str](), 0
    for block in text_blocks(path, encoding):
        parts.append(block.text)
        size_bytes += len(block.text.encode("utf-8", "surrogatepass"))
        if size_bytes > most_bytes:
            raise Refusal(f"source.root: {shown(path)}: has more than {most_bytes} bytes of text, which are held in memory: {remedy}")
    return "".join(parts)


LOOKED_AT_BYTES = 2 * 2**20
"""Upper bound for each of the three pieces of a file that `look` reads."""


def note_look(path: Path, size_bytes: int) -> None:
    if (found := LOOK.get()) and path.is_file():
        found.parts[path] = size_bytes, untrusted.size_bytes(path)


def look(path: Path, encoding: str) -> list[TextBlock]:
    """Return the text of a file or, if it is large, whole lines of its beginning, middle and end; if it is packed, only of its beginning.

    The line numbers of the last two are unknown, and are 0. An empty block says that more text follows. Raises Refusal as `text_blocks` does.
    """
    place = f"source.root: {shown(path)}"
    with readable(path) as file:
        is_file = path.is_file()
        start = file.read(3 * LOOKED_AT_BYTES + 1)
        codec, content = encodings.marked(start) or encoding, [start]
        if len(start) > 3 * LOOKED_AT_BYTES:
            if "\n".encode(codec).removeprefix(codecs.BOM_UTF8) != b"\n":  # an end of a line cannot be found in the middle
                note_look(path, len(start))
                return [next(decoded_blocks(io.BytesIO(start), encoding, place)), TextBlock(0, "")]
            content = [start[:LOOKED_AT_BYTES], b""]
            size_bytes = untrusted.size_bytes(path) if is_file and path.suffix.lower() not in PACKED else 0
            for at in (size_bytes // 2, size_bytes - LOOKED_AT_BYTES) if size_bytes else ():
                file.seek(at)
                content.append(file.read(LOOKED_AT_BYTES).partition(b"\n")[2])
            content = [piece[: piece.rfind(b"\n") + 1] for piece in content]
    note_look(path, sum(map(len, content)))
    first, *others = content
    blocks = list(decoded_blocks(io.BytesIO(first), codec, place))
    blocks += [
        block._replace(line=0)
        for piece in others
        for block in decoded_blocks(io.BytesIO(piece), codec.removesuffix("-sig"), f"{place}, in the middle or at the end")
    ]
    for block in blocks:
        refuse_nul(block, place)
    return blocks
