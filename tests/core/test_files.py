"""Files are whole or absent, digests cover everything, and locks hold between processes."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from pipeline.core import files


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_that_is_replaced_is_whole_and_leaves_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    with files.replacing(path) as draft:
        draft.write_text("first")
        assert not path.exists()
    with files.replacing(path) as draft:
        draft.write_text("second")
        assert path.read_text() == "first"
    assert path.read_text() == "second"
    assert names(path.parent) == ["file.txt"]


def interrupted(path: Path) -> None:
    with files.replacing(path) as draft:
        draft.write_text("half")
        raise KeyboardInterrupt


def test_a_write_that_is_interrupted_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("kept")
    with pytest.raises(KeyboardInterrupt):
        interrupted(path)
    assert path.read_text() == "kept"
    assert names(tmp_path) == ["file"]


def test_a_failed_write_says_which_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="full") as caught, files.replacing(tmp_path / "file"):
        raise OSError(28, "full")
    assert caught.value.filename == str(tmp_path / "file")


def test_json_keeps_its_order_and_takes_no_nan(tmp_path: Path) -> None:
    files.write_json(tmp_path / "file", {"b": 1, "a": "ü"})
    assert (tmp_path / "file").read_text(encoding="utf-8") == '{\n  "b": 1,\n  "a": "ü"\n}\n'
    with pytest.raises(ValueError, match="JSON compliant"):
        files.write_json(tmp_path / "file", float("nan"))
    assert "ü" in (tmp_path / "file").read_text(encoding="utf-8")


def test_canonical_json_is_one_text_for_one_value() -> None:
    assert files.canonical({"b": [1, 2.5, None], "a": "ü"}) == '{"a":"ü","b":[1,2.5,null]}'
    assert files.canonical({"a": 1, "b": 2}) == files.canonical({"b": 2, "a": 1})
    assert files.digest_of({"a": 1}) == "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"
    with pytest.raises(ValueError, match="JSON compliant"):
        files.canonical(float("inf"))


def test_the_digest_of_a_file_is_sha256(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    assert files.digest(path) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    path.write_bytes(b"abc" * files.BLOCK_BYTES)
    size = subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True).stdout
    assert files.digest(path) == size.split()[0]


@pytest.mark.parametrize("size", [0, 10, 11])
def test_the_chunked_digest_is_that_of_the_digests_of_chunks(tmp_path: Path, monkeypatch, size: int) -> None:
    monkeypatch.setattr(files, "CHUNK_BYTES", 10)
    monkeypatch.setattr(files, "BLOCK_BYTES", 5)
    path, data = tmp_path / "file", bytes(range(size))
    path.write_bytes(data)
    chunks = [data[start : start + 10] for start in range(0, max(size, 1), 10)]
    assert files.chunked_digest(path) == hashlib.sha256(b"".join(hashlib.sha256(chunk).digest() for chunk in chunks)).hexdigest()


def test_a_file_is_digested_while_it_grows(tmp_path: Path, monkeypatch) -> None:
    """A chunk that is digested is not read again: what changes in it later does not change the digest."""
    monkeypatch.setattr(files, "CHUNK_BYTES", 10)
    monkeypatch.setattr(files, "BLOCK_BYTES", 5)
    path, data = tmp_path / "file", bytes(range(35))
    path.write_bytes(data)
    expected = files.chunked_digest(path)
    with files.digest_threads() as pool:
        digest = files.ChunkedDigest(path, pool)
        for end, chunks in [(0, 0), (9, 0), (10, 1), (10, 1), (29, 2), (35, 3)]:
            digest.advance(end)
            assert len(digest.chunks) == chunks
        assert [len(chunk.result()) for chunk in digest.chunks] == [32] * 3
        path.write_bytes(b"x" * 30 + data[30:])
        assert digest.finish() == expected


def test_the_digest_of_a_folder_changes_with_names_and_contents_but_not_with_what_python_leaves(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.py").write_text("a")
    (folder / "b.py").write_text("b")
    first = files.digest(folder)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "b.pyc").write_text("bytes")
    assert files.digest(folder) == first
    assert [path.name for path in files.members(folder)] == ["b.py", "a.py"]
    seen = {first}
    for change in (
        lambda: (folder / "b.py").write_text("c"),
        lambda: (folder / "b.py").rename(folder / "c.py"),
        lambda: (folder / "deep" / "a.py").rename(folder / "a.py"),
        lambda: (folder / "d.py").write_text(""),
    ):
        change()
        seen.add(files.digest(folder))
    assert len(seen) == 5


def test_a_lock_is_not_given_twice(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "one.lock"
    for _ in range(2):
        with files.locked(path, wait=True) as first, files.locked(path, wait=False) as second:
            assert (first, second) == (True, False)


def test_sweeping_removes_what_killed_writers_left_and_nothing_else(tmp_path: Path) -> None:
    kept, swept = ("step-1.safetensors", "run", ".hidden", ".tmp"), (".model.safetensors.123.draft", ".tmpa1B2c3")
    for name in (*kept, *swept):
        (tmp_path / name).touch()
    files.sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(kept)
    files.sweep(tmp_path / "nowhere")
