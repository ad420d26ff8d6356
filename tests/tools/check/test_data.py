"""`check` examines names and classes of the user's own images before anything runs."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from pipeline.__main__ import main
from pipeline.core.refusal import Refusal
from pipeline.core.yaml_document import Document
from pipeline.tools.check import command as check
from pipeline.tools.check import misfits
from tests import project
from tests.imports import TOP


@pytest.fixture(autouse=True)
def without_dvc(monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC would be asked what it would run, which takes a second."""
    monkeypatch.setattr(check, "would_run", lambda _: True)


DIGITS = {"name": "digits", "root": "data/README.md", "valid": 0.2, "test": 0.2, "seed": 1, "folds": None, "fold": 0}


def images(folder: Path, classes: dict[str, int]) -> None:
    for name, count in classes.items():
        (folder / "images" / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / "images" / name / f"{number}.png")


@pytest.mark.parametrize(
    ("classes", "changes", "message"),
    [
        ({"cat": 9}, {}, "has only one class (cat): add samples of a second class"),
        (
            {"cat": 9, "dog": 9},
            {"source": {**project.IMAGE_FOLDER, "valid": 0.0}, "train.export_weights": "best"},
            "train.export_weights: best needs a validation split: set source.valid above 0",
        ),
        ({"cat": 9, "dog": 9}, {"evaluate.top_k": 3}, "evaluate.top_k: 3 is more than the 2 classes of this dataset: write at most 2"),
        ({}, {"source": DIGITS, "evaluate.top_k": 11}, "evaluate.top_k: 11 is more than the 10 classes of this dataset: write at most 10"),
    ],
    ids=["one class", "no validation split", "more ranks than classes", "more ranks than digits"],
)
def test_a_dataset_that_cannot_be_used_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], classes: dict, changes: dict, message: str
) -> None:
    monkeypatch.chdir(project.make(tmp_path, {"source": project.IMAGE_FOLDER, **changes}))
    images(tmp_path, classes)
    assert main(["check"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: params.yaml:")
    assert not (tmp_path / "data/prepared").exists()


def test_check_and_prepare_count_corrupt_images_and_name_the_first_ten(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(project.make(tmp_path, {"source": project.IMAGE_FOLDER, "evaluate.top_k": 2}))
    images(tmp_path, {"cat": 15, "dog": 15})
    for number in range(12):
        (tmp_path / f"images/cat/{number}.png").write_bytes(b"<html>")
    for verb in ("check", "prepare"):
        assert main([verb]) == 2
        error = capsys.readouterr().err
        assert "source.root: images: 12 of 30 images cannot be used: cat/0.png: cannot be decoded (is not an image" in error
        assert "cat/7.png: cannot be decoded (is not an image that Pillow can read); and 2 more: repair or remove them" in error
    monkeypatch.setattr(check, "would_run", lambda _: False)
    assert main(["check"]) == 0


def test_the_preset_of_image_folders_takes_two_splits_and_two_classes(tmp_path, monkeypatch, capsys) -> None:
    preset = Document.read(TOP / "presets/image-folder.yaml").data
    monkeypatch.chdir(project.make(tmp_path, {name: preset[name] for name in ("source", "train", "evaluate")}))
    monkeypatch.setenv("PIPELINE_WORKERS", "1")
    Path("data/raw/images").mkdir(parents=True)
    Path("images").symlink_to("data/raw/images")
    images(tmp_path, {f"{split}{name}": 20 for split in ("train/", "val/") for name in ("cat", "dog")})
    assert main(["check"]) == 0
    assert "mlp on images, training on cpu" in capsys.readouterr().out
    assert main(["prepare"]) == 0
    found = {path.name.partition("-")[0] for path in Path("data/prepared").glob("*-inputs.npy")}
    assert found == {"train", "valid", "test"}


def test_a_source_of_an_unknown_task_is_refused() -> None:
    source = SimpleNamespace(name="plane", targets_kind="regresion")
    with pytest.raises(Refusal, match=r"source\.name: .*plane.*regresion.*classification"):
        misfits.targets_of(source)
