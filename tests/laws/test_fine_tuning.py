"""A training that starts from a file: DVC watches the file, the model file records it, and `verify` trains to the same bytes."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.core import files
from pipeline.inference import tensor_file
from pipeline.inference.params import WEIGHTS_FOLDER
from tests import project
from tests.conftest import MLP
from tests.repository import GIT, call, repository, run

BASE = WEIGHTS_FOLDER / "base.safetensors"
SHORT = {"train.steps": 4, "train.report_every_steps": 4, "train.validate_every_steps": 4}
TUNED = {**SHORT, "model": {**MLP, "weights": BASE.name}, "train.freeze": ["1.*"], "train.micro_batch_size": 16}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkout with a model that was fine-tuned by stages that DVC has recorded."""
    folder = repository(tmp_path_factory.mktemp("finished"), SHORT)
    project.run(folder, "prepare", "train")
    shutil.copy(folder / "models/model.safetensors", folder / BASE)
    project.write_params(folder, TUNED)
    project.run(folder, "train", "evaluate")
    call(folder, "dvc", "commit", "--force", "prepare", "train")
    call(folder, *GIT, "add", "-A")
    call(folder, *GIT, "commit", "-qm", "results")
    return folder


@pytest.fixture
def other_file(finished: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the file, which a test may replace; restore it afterwards."""
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    monkeypatch.chdir(finished)
    path = finished / BASE
    content = path.read_bytes()
    yield path
    path.write_bytes(content)


def would_run(folder: Path) -> list[str]:
    output = call(folder, "dvc", "repro", "--dry", "train")
    return [stage for stage in ("prepare", "train") if f"Running stage '{stage}'" in output]


def replace_weights(path: Path) -> None:
    """Write another model of the same architecture."""
    tensors, metadata = tensor_file.load(path)
    tensor_file.save(path, {name: tensor + 1 for name, tensor in tensors.items()}, metadata)


@pytest.mark.slow
def test_dvc_trains_again_for_another_file_and_for_no_other_reason(finished: Path, other_file: Path) -> None:
    other_file.touch()
    (finished / WEIGHTS_FOLDER / "unused.safetensors").write_bytes(b"any")
    assert would_run(finished) == []
    replace_weights(other_file)
    assert would_run(finished) == ["train"]
    other_file.unlink()
    assert run(finished, "dvc", "repro", "--dry").returncode != 0


def test_the_model_file_records_the_file_and_the_training_is_repeated_to_the_same_bytes(finished: Path, other_file: Path, capsys) -> None:
    manifest = tensor_file.load(finished / "models/model.safetensors")[1]
    assert manifest["inputs"]["weights"] == files.digest(other_file)
    assert main(["verify", "--retrain"]) == 0
    output = capsys.readouterr().out
    assert f"train: 6 of 6 tensors start from {BASE}" in output
    assert output.splitlines()[-1] == "identical"
    assert f"verify: weights  equal    {BASE}" in output


def test_verify_names_a_file_that_was_replaced_and_one_that_is_gone(other_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for change, found in ((replace_weights, "in this checkout"), (Path.unlink, f"{BASE}: is missing")):
        change(other_file)
        assert main(["verify", "--retrain"]) == 1
        last = capsys.readouterr().out.splitlines()[-1]
        assert last.startswith("differs: weights: ")
        assert found in last
