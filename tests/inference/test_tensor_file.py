"""Tensor files: whole or absent, equal bytes for equal contents, and damaged ones are refused."""

import errno
import os
import random
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from pipeline.core import files
from pipeline.core.refusal import Refusal
from pipeline.inference import tensor_file
from tests.faults.corpus.damage import flipped

TENSORS = {
    "weight": torch.arange(240, dtype=torch.float32).view(20, 3, 4),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "count": torch.tensor(7),
    "empty": torch.zeros(0),
}
METADATA = {"step": 3, "name": "Zoë", "nested": {"b": [1, 2], "a": None}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tensor_file.save(tmp_path / "state.safetensors", TENSORS, METADATA)
    return tmp_path / "state.safetensors"


def test_what_is_saved_is_what_is_loaded(path: Path) -> None:
    tensors, metadata = tensor_file.load(path)
    assert metadata == METADATA
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) and tensors[name].dtype == TENSORS[name].dtype for name in TENSORS)


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_file_can_be_read_by_whom_the_umask_lets(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        tensor_file.save(tmp_path / "state.safetensors", TENSORS, METADATA)
    finally:
        os.umask(before)
    assert (tmp_path / "state.safetensors").stat().st_mode & 0o777 == 0o666 & ~umask


def test_equal_contents_give_equal_bytes_in_any_order_and_memory_layout(path: Path, tmp_path: Path) -> None:
    image = torch.randn(2, 3, 4, 5)
    found = []
    for number, tensor in enumerate((image, image.contiguous(memory_format=torch.channels_last))):
        other = tmp_path / str(number)
        tensor_file.save(other, dict(reversed([*TENSORS.items(), ("image", tensor)])), dict(reversed(METADATA.items())))
        found.append(files.digest(other))
    assert found[0] == found[1]


def test_tensors_that_share_memory_are_saved_one_by_one(tmp_path: Path) -> None:
    weight = torch.arange(6.0).view(2, 3)
    tensor_file.save(tmp_path / "tied", {"embedding": weight, "head": weight, "row": weight[1]}, {})
    tensors, _ = tensor_file.load(tmp_path / "tied")
    assert torch.equal(tensors["embedding"], weight)
    assert torch.equal(tensors["head"], weight)
    assert torch.equal(tensors["row"], weight[1])


def regions(content: bytes) -> list[tuple[str, int, int]]:
    """Return the names and ranges of bytes of the length of the header, the metadata, the rest of the header, parts of the data, and the end."""
    end = 8 + struct.unpack("<Q", content[:8])[0]
    metadata = content.index(b'"{')
    inner, step = content.index(b'"}', metadata) + 2, (len(content) - end) // 16
    found = [("length", 0, 8), ("metadata", metadata, inner), ("header", 8, metadata), ("header", inner, end)]
    found += [("data", start, start + step) for start in range(end, len(content) - step, step)]
    return [*found, ("end", len(content) - 8, len(content))]


def damages(content: bytes, count: int) -> Iterator[tuple[str, bytes]]:
    """Yield damaged contents with a description: one flipped bit in each region in turn, every fourth time a truncation."""
    draw, places = random.Random(0), [each for each in regions(content) if each[1] < each[2]]
    for number in range(count):
        name, start, end = places[number % len(places)]
        at, bit = draw.randrange(start, end), draw.randrange(8)
        is_cut = number // len(places) % 4 == 3
        yield f"{'cut' if is_cut else f'bit {bit}'} at {at} ({name})", content[:at] if is_cut else flipped(content, at, bit)


def test_every_flipped_bit_and_every_truncation_is_found(path: Path) -> None:
    missed = []
    for name, content in damages(path.read_bytes(), int(os.environ.get("FLIPS", "600"))):
        path.write_bytes(content)
        with suppress(Refusal):
            tensor_file.load(path)
            missed.append(name)
    assert missed == []


def test_a_full_disk_is_an_error_of_the_disk_and_leaves_what_was_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise SafetensorError(f"Error while serializing: I/O error: {os.strerror(errno.ENOSPC)} (os error {errno.ENOSPC})")

    monkeypatch.setattr(tensor_file, "save_file", full)
    with pytest.raises(OSError, match=str(path)) as caught:
        tensor_file.save(path, TENSORS, METADATA)
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_checkpoint_has_a_row_for_each_of_any_number_of_reports(path: Path) -> None:
    """Only files of strangers, whose header is bounded, may list few values."""
    rows = [dict.fromkeys("abcdefghij", 1.0)] * 20_000
    tensor_file.save(path, TENSORS, {"rows": rows})
    assert tensor_file.load(path)[1]["rows"] == rows
    with pytest.raises(Refusal, match="Has more than 900000 values or 131072 keys"):
        tensor_file.load(path, header_bytes=tensor_file.HEADER_BYTES - 1)
