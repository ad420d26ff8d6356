"""Text in blocks: unpacked, decoded and cut between lines, equal for any size of blocks; what is no text is refused with its line."""
# ruff: noqa: RUF001  # the texts are in other scripts

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.core.refusal import Refusal
from pipeline.prepare.reading import streams
from tests.sources.rows import packed

TEXTS = {
    "cp1252": "une soirée très agréable à l’hôtel, déjà\nnaïve Größe über straße\n",
    "cp1250": "bardzo zły dzień, źdźbło\n",
    "cp1251": "очень хороший день, Москва и погода\nплохо, но быстро\n",
    "gbk": "这个电影很好，我们都喜欢看。\n不好 a very dull day\n",
    "big5": "這個電影很好，我們都喜歡看。\n不好的天氣\n",
    "cp932": "この映画はとても良かったです。\nカメラは悪い\n",
    "cp949": "이 영화는 정말 좋았습니다\n나쁜 하루\n",
}
EVERY = TEXTS | dict.fromkeys(("utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32"), "é😀\r\n\n這個 no end")


def text_of(path: Path, encoding: str = streams.UTF8) -> str:
    return "".join(block.text for block in streams.text_blocks(path, encoding))


@pytest.mark.parametrize("name", TEXTS)
def test_the_encoding_whose_text_reads_right_reads_the_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,label\n" + TEXTS[name].encode(name))
    with pytest.raises(Refusal, match=r"a\.csv:2: is not UTF-8 ") as caught:
        text_of(path)
    foreign = re.findall(r"[^\x00-\x7f].*", TEXTS[name])[0][:10]
    assert f'{name}` for "{foreign}' in str(caught.value)
    assert text_of(path, name) == "text,label\n" + TEXTS[name]
    path.write_bytes(bytes(range(128, 256)) * 3)
    with pytest.raises(Refusal, match=r"byte 0x80\): name its encoding by `python -m pipeline set source.encoding=NAME`, an encoding"):
        text_of(path)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("suffix", ["", *streams.PACKED])
def test_blocks_of_any_size_are_whole_lines_of_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, suffix: str) -> None:
    text = EVERY[name]
    path = packed(tmp_path / f"a.txt{suffix}", text.encode(name))
    encoding = "gbk" if name in ("utf-8-sig", "utf-16", "utf-32") else name  # their mark counts more
    for size in (5, 7, 2**20):
        monkeypatch.setattr(streams, "BLOCK_BYTES", size)
        blocks = [*streams.text_blocks(path, encoding)]
        assert "".join(block.text for block in blocks) == text
        assert all(block.text.endswith("\n") for block in blocks[:-1])
        assert [block.line for block in blocks] == [1 + "".join(each.text for each in blocks[:at]).count("\n") for at in range(len(blocks))]
    if name in streams.WITHOUT_MARK:
        assert text_of(packed(path, text.encode(f"{name}-le")), name) == text
    packed(path, b"")
    assert [*streams.text_blocks(path)] == [streams.TextBlock(1, "")]


REFUSED = {
    "not UTF-8": ("a.txt", b"a\n\nb\xff\n", "a.txt:3: is not UTF-8 (byte 0xFF): name its encoding by"),
    "no text": ("a.txt", b"PK\3\4\xc4\0\n", "and seems to be no text: if it is one in UTF-16, name its encoding by `python -m pipeline set source.encoding=utf-16-le`; else"),
    "binary": ("a.txt", b"\x89HDF\0\0\xc4\0\0\0\n", "and seems to be no text: leave it out, or write its rows into a .csv or .parquet file"),
    "half a character at the end": ("a.txt", "a\né".encode()[:-1], "a.txt:2: is not UTF-8"),
    "half a pair of UTF-16": ("a.txt", "\ufeffa\nb\n".encode("utf-16-be") + b"\xd8\0" + "\n".encode("utf-16-be"), "a.txt:3: is not UTF-16"),
    "a NUL": ("a.txt", b"a\n\nb\0\n", "a.txt:3: has a NUL character, so it is no text: remove it, or leave out the file"),
    "a long line": ("a.txt", b"a\n" + b"b" * 100, "a.txt:2: has a line of more than 50 characters: divide it"),
    "no gzip": ("a.gz", b"text\n", "a.gz: cannot be read (Not a gzipped file (b'te'))"),
    "a cut gzip": ("a.gz", gzip.compress(b"text\n" * 99)[:-9], "Compressed file ended before the end-of-stream marker was reached): "),
    "a damaged gzip": ("a.gz", gzip.compress(b"text\n" * 99)[:-8] + bytes(8), "a.gz: cannot be read (CRC check failed"),
    "no zstd": ("a.zst", b"text\n", "a.zst: cannot be read (ZSTD decompress failed"),
    "a cut zstd": ("a.zst", bytes(pa.compress(b"text\n" * 99, "zstd"))[:-5], "a.zst: cannot be read (Truncated compressed stream)"),
    "nothing there": ("b.txt", b"", "a.txt: cannot be read (No such file or directory)"),
}  # fmt: skip


@pytest.mark.parametrize("size", [7, 2**20])
@pytest.mark.parametrize(("name", "content", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_text_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, message: str, size: int
) -> None:
    monkeypatch.setattr(streams, "BLOCK_BYTES", size)
    monkeypatch.setattr(streams, "LONGEST_LINE", 50)
    (tmp_path / name).write_bytes(content)
    reads: list[Callable[[Path], object]] = [text_of, lambda path: streams.look(path, streams.UTF8)]
    for read in (
        reads if b"bbb" not in content else reads[: size == 7]
    ):  # blocks are shorter than the longest line, and those of a look are few
        with pytest.raises(Refusal) as caught:
            read(tmp_path / name.replace("b", "a"))
        assert message in str(caught.value)
        assert str(caught.value).startswith("source.root: ")


def test_a_document_of_more_than_the_bound_is_refused_with_the_remedy() -> None:
    blocks = [streams.TextBlock(1, "tw\n"), streams.TextBlock(2, "o")]
    assert streams.read_text(blocks, "a.txt", 4, "divide it") == "tw\no"
    with pytest.raises(Refusal, match=r"^a\.txt: has more than 3 characters in one document: divide it"):
        streams.read_text(blocks, "a.txt", 3, "divide it")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_look_at_a_large_file_has_whole_lines_of_its_beginning_middle_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    lines = [f"line {number}\n" for number in range(1000)]
    path = packed(tmp_path / "a.txt", "".join(lines).encode(encoding))
    assert streams.look(path, encoding) == [streams.TextBlock(1, "".join(lines))]
    monkeypatch.setattr(streams, "LOOKED_AT_BYTES", 100)
    monkeypatch.setattr(streams, "BLOCK_BYTES", 200)
    one_line = packed(tmp_path / "b.txt", ("\u00e9" * 400).encode(encoding))
    assert streams.look(one_line, encoding)[0].text.startswith("\u00e9\u00e9")
    first, *others = streams.look(path, encoding)
    assert (first.line, first.text.startswith(lines[0])) == (1, True)
    if encoding == "utf-16":
        assert [block.text for block in others] == [""]
    else:
        assert [block.line for block in others] == [0, 0, 0]
        assert others[2].text.endswith(lines[-1])
        assert {*others[1].text.splitlines(keepends=True)} <= {*lines[490:520]}
        assert [block.text for block in streams.look(packed(tmp_path / "a.gz", "".join(lines).encode()), encoding)] == [first.text, ""]


def test_only_encodings_of_files_that_python_knows_are_names() -> None:
    assert [streams.known_encoding(name) for name in ("GB18030", "latin-1", "utf-16-le")] == ["GB18030", "latin-1", "utf-16-le"]
    for name in ("gbkk", "", "a\0", "base64", "undefined", "idna", "unicode_escape"):
        with pytest.raises(ValueError, match="is no encoding that Python knows: write utf-8, or for example cp1252"):
            streams.known_encoding(name)


@pytest.mark.parametrize(("content", "count"), [(b"", 0), (b"a\nb", 2), (b"a\nb\n", 2)])
def test_a_last_line_without_an_end_counts(tmp_path: Path, content: bytes, count: int) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    assert streams.num_lines(tmp_path / "a.txt") == count


def test_lines_are_counted_once_unless_the_file_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a\nb\n")
    assert streams.num_lines(path) == 2
    with monkeypatch.context() as patches:
        patches.setattr(streams, "BLOCK_BYTES", 0)  # nothing would be read
        assert streams.num_lines(path) == 2
    path.write_text("a\nb\nc\n")
    assert streams.num_lines(path) == 3
    path.unlink()
    with pytest.raises(Refusal, match=r"a\.txt: cannot be read \(No such file or directory\): make it a readable file"):
        streams.num_lines(path)
