"""A damaged parameter file, model file or archive is either read or refused.

The examples are the same in each run. FUZZ=100 draws random ones, a hundred times as many.
"""

import bz2
import gzip
import lzma
import os
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.__main__ import main
from pipeline.core.refusal import Refusal
from pipeline.inference import model_file, tensor_file
from pipeline.sources import arrays, image_folder
from pipeline.tools.check import command as check
from tests.faults import hostile
from tests.faults.corpus.archives import tar, zipped
from tests.faults.corpus.datasets import members
from tests.faults.corpus.parameters import PARAMS
from tests.faults.mutations import damaged_bytes, damaged_lines, damaged_tree
from tests.imports import TOP

PRESETS = [path.read_text(encoding="utf-8") for path in sorted((TOP / "presets").glob("*.yaml"))]


ROUNDS = int(os.environ.get("FUZZ", "0"))


def examples(count: int) -> Callable[[Any], Any]:
    """Run a property on `count` examples, or on FUZZ times as many random ones."""
    return settings(
        max_examples=max(1, ROUNDS) * count,
        deadline=None,
        derandomize=not ROUNDS,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(scope="module")
def folder(unplotted: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"TRACKING": "false", "THREADS": "2", "DEVICE": "cpu"}.items():
            patch.setenv(f"PIPELINE_{name}", value)
        patch.setattr(check, "would_run", lambda _: False)  # no DVC is started and nothing downloaded
        yield hostile.make(tmp_path_factory.mktemp("fuzz"))


@pytest.fixture(scope="module")
def model(folder: Path) -> bytes:
    return (folder / hostile.MODEL).read_bytes()


def read_or_refused(attempt: Callable[[], object]) -> None:
    with hostile.bounded():
        try:
            attempt()
        except Refusal:
            return


@examples(8)
@given(text=damaged_lines(PRESETS))
def test_a_damaged_parameter_file_passes_the_check_or_is_refused(folder: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    with chdir(folder), hostile.bounded():
        PARAMS.write_text(text, encoding="utf-8")
        assert main(["check"]) in (0, 2)
    output = capsys.readouterr()
    assert all(line.startswith("error: ") for line in output.err.splitlines())


@examples(160)
@given(data=st.data())
def test_a_model_file_of_damaged_bytes_is_refused(folder: Path, model: bytes, data: st.DataObject) -> None:
    path = folder / "damaged.safetensors"
    content = data.draw(damaged_bytes(model))
    path.write_bytes(content)
    if content != model:
        with pytest.raises(Refusal), hostile.bounded():
            model_file.load(path)


@examples(40)
@given(data=st.data())
def test_a_whole_model_file_of_other_metadata_is_read_or_refused(folder: Path, model: bytes, data: st.DataObject) -> None:
    path = folder / "other.safetensors"
    path.write_bytes(model)
    tensors, metadata = tensor_file.load(path)
    tensor_file.save(path, tensors, data.draw(damaged_tree(metadata)))
    read_or_refused(lambda: model_file.load(path))


DIVIDED = {"valid": 0.0, "test": 0.2, "seed": 1, "folds": None, "fold": 0, "duplicates": "keep"}
DECODED = {"image_size": 4, "channels": 1, "on_corrupt": "skip", "max_pixels": 10_000, "white": None}
ARCHIVES: dict[str, tuple[list[bytes], Callable[[Path], Any]]] = {
    "tar": (
        [pack(tar()) for pack in (bytes, gzip.compress, bz2.compress, lzma.compress)],
        lambda path: image_folder.Settings(name="image_folder", root=path, **DIVIDED, **DECODED),
    ),
    "zip": (
        [zipped({"train/cat/x.png": b""})],
        lambda path: image_folder.Settings(name="image_folder", root=path, **DIVIDED, **DECODED),
    ),
    "npz": ([members()], lambda path: arrays.Settings(name="arrays", root=path, **DIVIDED)),
}


@pytest.mark.parametrize("kind", ARCHIVES)
@examples(100)
@given(data=st.data())
def test_a_damaged_archive_is_read_or_refused(folder: Path, data: st.DataObject, kind: str) -> None:
    good, settings_of = ARCHIVES[kind]
    path = folder / f"damaged.{kind}"
    path.write_bytes(data.draw(st.sampled_from(good).flatmap(damaged_bytes)))
    read_or_refused(lambda: sum(int(np.prod(block.inputs.shape)) for block in settings_of(path).open(workers=1).blocks()))
