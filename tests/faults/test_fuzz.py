"""A damaged parameter file, model file or archive is either read or refused.

The examples are the same in each run. FUZZ=100 draws random ones, a hundred times as many.
"""

import bz2
import copy
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
from tests import project
from tests.faults import hostile
from tests.faults.corpus.archives import tar, zipped
from tests.faults.corpus.datasets import members
from tests.faults.corpus.parameters import PARAMS
from tests.imports import TOP

WORDS = [
    *("null", "true", "-1", "0", "1", "65536", "1000000", "1e999", ".nan", "-.inf", "0x_f", "1_0", "[]", "{}", "[[[]]]", "''"),
    *("~", "&a", "*a", "<<:", "!!int", "!!set", "!!python/name:os.system", "../../x", "os", "\\0", "\ud7ff", "\u202e", "-"),
    *("?", ":", "#", "%", "@", "`", "|", ">", '"', "'", "{", "}", "[", "]", ",", "2020-13-45", "99999999999999999999999999"),
    *("mlp", "convnet", "torchvision", "sgd", "adamw", "cosine"),
]
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2, 9, 65_536, 10**6, 2**31, 2**63, 2**64, 10**30, 0.5, 1e-320, 1e308),
    *("", "x", "NaN", "../../x", "os", "\0", "\x1b[2J", "mlp", "convnet", "resnet", "torchvision", "resnet18", "image", "fp16"),
    *([], [1], [0, 0, 0], [65_535, 65_535, 3], ["a", "b"], {}, {"name": "mlp"}),
)


@st.composite
def damaged_bytes(draw: st.DrawFn, good: bytes) -> bytes:
    """Apply one to four damages: a flipped bit, another byte, a truncation, or a piece that is removed, repeated, inserted or overwritten."""
    content = good
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, max(0, len(content) - 1)))
        length = draw(st.integers(0, 64))
        piece = content[start : start + length]
        kind = draw(st.sampled_from(["flip", "set", "cut", "leave out", "repeat", "insert", "overwrite"]))
        match kind:
            case "flip" if content:
                content = content[:start] + bytes([content[start] ^ 1 << draw(st.integers(0, 7))]) + content[start + 1 :]
            case "set":
                content = content[:start] + draw(st.sampled_from([b"\0", b"\x7f", b"\x80", b"\xff"])) + content[start + 1 :]
            case "cut":
                content = content[:start]
            case "leave out":
                content = content[:start] + content[start + length :]
            case "repeat":
                content = content[:start] + piece * draw(st.integers(2, 5)) + content[start + length :]
            case "insert":
                content = content[:start] + draw(st.binary(max_size=64)) + content[start:]
            case "overwrite":
                foreign = draw(st.binary(max_size=64))
                content = content[:start] + foreign + content[start + len(foreign) :]
    return content


@st.composite
def damaged_lines(draw: st.DrawFn, texts: list[str]) -> str:
    """Remove, move, repeat or indent some lines of a parameter file, change their values, or insert words."""
    lines = draw(st.sampled_from(texts)).splitlines()
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(lines) - 1))
        word = draw(st.sampled_from(WORDS))
        match draw(st.sampled_from(["value", "value", "value", "key", "delete", "repeat", "move", "indent", "word"])):
            case "value":
                lines[at] = f"{lines[at].partition(':')[0]}: {word}"
            case "key":
                lines[at] = f"  {word}:{lines[at].partition(':')[2]}"
            case "delete" if len(lines) > 1:
                del lines[at]
            case "repeat":
                lines.insert(draw(st.integers(0, len(lines))), lines[at])
            case "move":
                lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(at))
            case "indent":
                lines[at] = " " * draw(st.integers(0, 5)) + lines[at].strip()
            case "word":
                place = draw(st.integers(0, len(lines[at])))
                lines[at] = lines[at][:place] + word + lines[at][place:]
    return "\n".join(lines) + "\n"


@st.composite
def damaged_tree(draw: st.DrawFn, good: Any) -> Any:
    """Replace, remove or add values in one to three places of a JSON tree."""
    tree = copy.deepcopy(good)
    for _ in range(draw(st.integers(1, 3))):
        places = list(containers(tree))
        place = draw(st.sampled_from(places))
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        value = copy.deepcopy(draw(st.sampled_from(VALUES)))
        match draw(st.sampled_from(["replace", "replace", "replace", "delete", "add"])):
            case "replace" if keys:
                place[draw(st.sampled_from(keys))] = value
            case "delete" if keys:
                del place[draw(st.sampled_from(keys))]
            case _ if isinstance(place, dict):
                place[draw(st.sampled_from(["name", "extra", "width", "", "\x1b"]))] = value
            case _:
                place.append(value)
    return tree


def containers(tree: Any) -> Any:
    if isinstance(tree, dict | list):
        yield tree
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from containers(part)


PRESETS = [path.read_text(encoding="utf-8") for path in sorted((TOP / "presets").glob("*.yaml"))]


ROUNDS = int(os.environ.get("FUZZ", "0"))


def examples(count: int) -> Callable[[Any], Any]:
    """Run a property on `count` examples, or on FUZZ times as many random ones."""
    return settings(
        max_examples=max(1, ROUNDS) * count, deadline=None, derandomize=not ROUNDS, database=None, suppress_health_check=list(HealthCheck)
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


DIVIDED = project.DIVIDED | {"valid": 0.0}
IMAGES = DIVIDED | project.DECODED | {"image_size": 4, "channels": 1, "on_corrupt": "skip"}
ARCHIVES: dict[str, tuple[list[bytes], Callable[[Path], Any]]] = {
    "tar": (
        [pack(tar()) for pack in (bytes, gzip.compress, bz2.compress, lzma.compress)],
        lambda path: image_folder.Settings(name="image_folder", root=path, **IMAGES),
    ),
    "zip": ([zipped({"train/cat/x.png": b""})], lambda path: image_folder.Settings(name="image_folder", root=path, **IMAGES)),
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
