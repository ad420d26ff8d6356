"""Foreign checkpoints in the work folder: damaged ones are skipped, and whole ones of another training are refused."""

import os
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.core.environment import Environment, Paths
from pipeline.core.params import load
from pipeline.core.prepared import Prepared
from pipeline.core.yaml_document import Document
from pipeline.inference import tensor_file
from pipeline.inference.machine import Machine
from pipeline.train.group.processes import ALONE
from pipeline.train.params import TrainParams
from pipeline.train.stage import identify
from tests.faults import hostile
from tests.faults.corpus import models
from tests.faults.corpus.damage import endless, loop

HEAVY = {"one hundred thousand tensors", "a header of a hundred megabytes"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"TRACKING": "false", "THREADS": "2", "DEVICE": "cpu"}.items():
            patch.setenv(f"PIPELINE_{name}", value)
        yield hostile.make(tmp_path_factory.mktemp("checkpoints") / "project")


def work_folder() -> Path:
    """Make and return the folder in which a training of this project looks for its checkpoints."""
    environment = Environment.read()
    paths = Paths()
    params = load(Document.read(paths.params), TrainParams)
    identity = identify(params, paths, Prepared.open(hostile.PREPARED), Machine.set_up(environment), ALONE)
    place = environment.root / ".pipeline/work" / identity.key
    place.mkdir(parents=True, exist_ok=True)
    return place


def test_damaged_checkpoints_are_skipped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with chdir(folder):
        before = hostile.MODEL.read_bytes()
        contents = [content() for name, (content, _) in models.BYTES.items() if name not in HEAVY]
        place = work_folder()
        paths = [place / f"step-{number:012d}.safetensors" for number in range(len(contents) + 4)]
        for path, content in zip(paths, contents, strict=False):
            path.write_bytes(content)
        for path, make in zip(paths[len(contents) :], (os.mkfifo, Path.mkdir, endless, loop), strict=True):
            make(path)
        assert main(["train"]) == 0
        output = capsys.readouterr().out
        assert output.count("is damaged and was moved to") == len(paths)
        assert hostile.MODEL.read_bytes() == before


def test_a_whole_checkpoint_of_another_training_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model file, one without scalars, and one with scalars and rows that are text."""
    with chdir(folder):
        tensors, metadata = tensor_file.load(hostile.MODEL)
        for scalars in (
            metadata,
            {"state": {}, "progress": {}},
            {"state": "x", "progress": "x"},
            {"state": {"step": "x", "scaler": []}, "progress": {"rows": 3}},
        ):
            tensor_file.save(work_folder() / "step-000000000001.safetensors", tensors, scalars)
            capsys.readouterr()
            assert main(["train"]) == 2
            assert "the checkpoint does not match this model and optimizer" in capsys.readouterr().err
