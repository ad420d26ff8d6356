"""Rows in `.npy` files: any order of writing gives one file, gaps are closed, and a late writer reaches no later file."""

import errno
import os
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.core import files
from pipeline.prepare import rows
from pipeline.prepare.rows import RowFile, RowRange

ROWS = np.random.default_rng(0).integers(0, 2**16, (40, 3, 2), dtype=np.uint16)


def created(folder: Path, planned: int = len(ROWS)) -> RowFile:
    file = RowFile(folder / "x.npy", ROWS.shape[1:], ROWS.dtype)
    file.create(planned)
    return file


def finished(file: RowFile) -> str:
    with files.digest_threads() as pool:
        return file.finish(files.ChunkedDigest(file.draft, pool))


def test_the_order_of_writing_changes_no_byte_and_the_file_is_that_of_numpy(tmp_path: Path) -> None:
    file = created(tmp_path)
    for start in (30, 0, 20, 10):
        file.write(start, ROWS[start : start + 10])
    assert not file.path.exists()
    digest = finished(file)
    np.save(tmp_path / "expected.npy", ROWS)
    assert file.path.read_bytes() == (tmp_path / "expected.npy").read_bytes()
    assert digest == files.chunked_digest(file.path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["expected.npy", "x.npy"]


@pytest.mark.parametrize("runs", [[(1, 39)], [(0, 0), (39, 1)], [(0, 2), (3, 7), (10, 0), (11, 2), (20, 20)]], ids=str)
def test_gaps_are_closed_in_the_order_of_the_rows(tmp_path: Path, monkeypatch, runs: list[tuple[int, int]]) -> None:
    monkeypatch.setattr(rows, "MOVED_BYTES", 7)
    file = created(tmp_path)
    for start, length in runs:
        file.write(start, ROWS[start : start + length])
    file.close_gaps(RowRange(*run) for run in reversed(runs))
    finished(file)
    np.save(tmp_path / "expected.npy", np.concatenate([ROWS[start : start + length] for start, length in runs]))
    assert file.path.read_bytes() == (tmp_path / "expected.npy").read_bytes()


def test_a_late_writer_of_a_killed_prepare_cannot_write_into_the_next_files(tmp_path: Path) -> None:
    late = created(tmp_path)
    files.sweep(tmp_path)
    file = created(tmp_path)
    with pytest.raises(FileNotFoundError):
        late.write(0, ROWS)
    file.write(0, ROWS)
    finished(file)
    with pytest.raises(FileNotFoundError):
        late.write(0, ROWS[::-1])
    assert np.array_equal(np.load(file.path), ROWS)


def test_a_shared_file_is_written_synchronously_and_not_opened_for_reading(tmp_path: Path, monkeypatch) -> None:
    file = replace(created(tmp_path), shared=True)
    real, flags = os.open, []
    monkeypatch.setattr(os, "open", lambda path, flag, *rest: (flags.append(flag), real(path, flag, *rest))[1])
    file.write(0, ROWS)
    assert [flag & (os.O_ACCMODE | os.O_DSYNC) for flag in flags] == [os.O_WRONLY | os.O_DSYNC]


def test_a_write_that_does_not_fit_raises_oserror(tmp_path: Path) -> None:
    """As on a full disk: a write beyond 150 bytes fails. Python ignores the signal SIGXFSZ."""
    file, limits = created(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            file.write(0, ROWS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG


def test_a_chunk_whose_samples_of_a_split_are_all_corrupt_has_no_digests() -> None:
    assert rows.row_digests(ROWS[:0]).shape == (0,)
    assert len(set(rows.row_digests(ROWS).tolist())) == len(ROWS)
