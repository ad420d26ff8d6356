"""The stages refuse prepared data and model files that are missing, foreign or damaged, and disks that cannot be written."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pipeline.__main__ import main
from pipeline.core import files
from pipeline.core.environment import Paths
from pipeline.core.identity import refuse_other_source
from pipeline.core.params import load
from pipeline.core.prepared import Prepared
from pipeline.core.yaml_document import Document
from pipeline.prepare.params import PrepareParams
from tests.tools.parameters import Parameters

Refused = Callable[..., list[str]]


@pytest.fixture
def arrays(parameters: Parameters) -> Path:
    """Use twelve tiny images as the source of the project."""
    root = Path("data/raw/tiny.npz")
    root.parent.mkdir()
    inputs = np.arange(12 * 4 * 4, dtype=np.uint8).reshape(12, 4, 4)
    np.savez(root, inputs=inputs, targets=np.arange(12) % 2)
    parameters.section(
        "source", "name: arrays", f"root: {root}", "valid: 0.25", "test: 0.25", "seed: 1", "folds: null", "fold: 0", "duplicates: keep"
    )
    parameters.section("model", "name: mlp", "weights: null", "width: 4", "depth: 1", "dropout: 0.0")
    parameters.write()
    return root


@pytest.fixture
def prepared(arrays: Path) -> Path:
    assert main(["prepare"]) == 0
    return Path("data/prepared")


def test_a_missing_dataset_is_refused_at_its_line_and_nothing_is_lost(
    prepared: Path, parameters: Parameters, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Prepared.open(prepared).digest
    line = parameters.put("source.root", "data/raw/nowhere.npz")
    parameters.write()
    for verb in ("check", "prepare"):
        [said] = refused(verb)
        assert said.startswith(
            f"params.yaml:{line}: source.root: data/raw/nowhere.npz does not exist: write the path of the folder or archive"
        )
    monkeypatch.setenv("PIPELINE_IMAGE_REVISION", "abc")
    assert f"add `-v FOLDER:{Path('data/raw/nowhere.npz').absolute()}` to `docker run`" in refused("check")[0]
    assert Prepared.open(prepared).digest == before


def test_data_that_were_prepared_with_other_parameters_are_refused(
    prepared: Path, parameters: Parameters, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters.put("evaluate.top_k", "1")
    line = parameters.put("source.test", "0.5")
    parameters.write()
    expected = (
        f"params.yaml:{line}: source.test: was 0.25 when data/prepared was made, and is 0.5 now. "
        "Run `dvc repro -f prepare` to make it with the new values"
    )
    command = pytest.importorskip("pipeline.tools.check.command")
    monkeypatch.setattr(command, "would_run", lambda _: False)
    for verb in ("train", "evaluate", "check"):
        assert refused(verb) == [expected]
    monkeypatch.setattr(command, "would_run", lambda _: True)
    assert main(["check"]) == 0
    assert main(["prepare"]) == 0
    monkeypatch.setattr(command, "would_run", lambda _: False)
    assert main(["check"]) == 0


def test_data_of_an_earlier_version_tell_no_parameters_and_keep_their_digest(prepared: Path, parameters: Parameters) -> None:
    before, content = Prepared.open(prepared).digest, json.loads((prepared / "spec.json").read_text(encoding="utf-8"))
    assert content.pop("source")["test"] == 0.25
    (prepared / "spec.json").write_text(json.dumps(content), encoding="utf-8")
    assert Prepared.open(prepared).digest == before == files.digest_of(content)
    parameters.put("source.test", "0.5")
    parameters.write()
    refuse_other_source(load(Document.read(Paths().params), PrepareParams).source, prepared)


@pytest.mark.parametrize(
    ("number", "words", "code"),
    [
        (errno.ENOSPC, "the disk is full", 69),
        (errno.EDQUOT, "the disk quota is used up", 69),
        (errno.EROFS, "the file system is read-only: run in a writable folder", 2),
        (errno.ENOLCK, "the file system does not support file locks", 2),
    ],
)
def test_a_write_that_fails_names_the_file_and_the_remedy_and_leaves_nothing(
    prepared: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch, number: int, words: str, code: int
) -> None:
    def fail(path: Path, text: str, **_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_text", fail)
    [said] = refused("prepare", code=code)
    assert said.startswith(f"data/prepared/spec.json: {words}")
    assert not (prepared / "spec.json").exists()
    assert not list(prepared.glob(".*"))
