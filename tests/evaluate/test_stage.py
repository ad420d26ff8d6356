"""The evaluate stage as a command: the model file alone decides, and other data is refused."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow import parquet

from pipeline.__main__ import main
from pipeline.core import files
from pipeline.core.prepared import Prepared, sample_keys
from pipeline.core.refusal import Refusal
from pipeline.core.spec import Spec
from pipeline.evaluate.stage import refuse_other_data
from pipeline.inference import model_file
from pipeline.runs import events, journal
from tests import project
from tests.specs import image_spec, text_spec

FIGURES = ("confusion.png", "reliability.png", "mistakes.png", "history.png")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project.run(project.make(tmp_path_factory.mktemp("trained")), "prepare", "train")


@pytest.fixture
def here(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(trained)
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    return trained


@pytest.fixture
def plotted_nothing(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return `here`, where tables and figures are not written: that takes most of the time of an evaluation."""
    monkeypatch.setattr("pipeline.tasks.classification.evaluate.Evaluator.write", lambda *_, **__: None)
    return here


def test_scores_tables_and_figures_are_written(here: Path, capsys) -> None:
    assert main(["evaluate"]) == 0
    assert re.match(r"test accuracy 0\.\d{4} \(between 0\.\d{4} and 0\.\d{4}\) on 359 samples; ", capsys.readouterr().out.splitlines()[-1])
    written = json.loads((here / "metrics/evaluate.json").read_text())
    assert written.keys() == {"test", "model"}
    assert written["model"] == files.digest(here / "models/model.safetensors")[:12]
    scores = written["test"]
    assert scores["samples"] == 359
    assert 0.15 < scores["accuracy"] <= 1
    assert scores["accuracy_interval"]["low"] <= scores["accuracy"] <= scores["accuracy_interval"]["high"]
    assert len((here / "plots/evaluate/confusion.csv").read_text().splitlines()) == 360
    predicted = parquet.read_table(here / "predictions/test.parquet")
    assert predicted["key"].to_pylist() == sample_keys(here / "data/prepared", "test", 359)
    assert sum(predicted["loss"].to_pylist()) / 359 == pytest.approx(scores["loss"], rel=1e-12)
    for name in FIGURES:
        assert (here / "plots/evaluate" / name).read_bytes().startswith(b"\x89PNG"), name


def test_the_batch_size_of_scoring_decides_no_score(plotted_nothing: Path) -> None:
    found = []
    for batch_size in (7, 1000):
        project.write_params(plotted_nothing, {"evaluate.batch_size": batch_size})
        assert main(["evaluate"]) == 0
        found.append(json.loads((plotted_nothing / "metrics/evaluate.json").read_text())["test"])
    assert found[0]["accuracy"] == found[1]["accuracy"]
    assert found[0]["loss"] == pytest.approx(found[1]["loss"], rel=1e-5)
    project.write_params(plotted_nothing)


def test_augmented_scores_stand_beside_the_plain_ones_under_a_name_of_their_own(plotted_nothing: Path) -> None:
    assert main(["evaluate"]) == 0
    plain = json.loads((plotted_nothing / "metrics/evaluate.json").read_text())["test"]
    assert not any(name.startswith("accuracy_mirror") for name in plain)
    project.write_params(plotted_nothing, {"evaluate.test_time_augmentation": "mirror"})
    assert main(["evaluate"]) == 0
    both = json.loads((plotted_nothing / "metrics/evaluate.json").read_text())["test"]
    project.write_params(plotted_nothing)
    found = both.pop("accuracy_mirror")
    assert both == plain
    model, _ = model_file.load(plotted_nothing / "models/model.safetensors")
    split = Prepared.open(plotted_nothing / "data/prepared").split("test")
    logits = sum(model(torch.from_numpy(np.ascontiguousarray(view))).numpy() for view in (split.inputs, split.inputs[:, :, ::-1]))
    assert found == pytest.approx((logits.argmax(axis=1) == split.targets).mean())
    assert found != plain["accuracy"], "a mirrored digit is another sign"


def test_the_model_in_the_file_is_scored_and_not_the_one_in_params_yaml(plotted_nothing: Path) -> None:
    assert main(["evaluate"]) == 0
    before = (plotted_nothing / "metrics/evaluate.json").read_bytes()
    project.write_params(plotted_nothing, {"model": {"name": "convnet", "weights": None, "width": 3, "dropout": 0.5}})
    assert main(["evaluate"]) == 0
    assert (plotted_nothing / "metrics/evaluate.json").read_bytes() == before
    project.write_params(plotted_nothing)


def with_inputs(spec: Spec, **changes: object) -> Spec:
    return spec.model_copy(update={"inputs": spec.inputs.model_copy(update=changes)})


IMAGES = image_spec(shape=(3, 3, 1), classes=("a", "b"), mean=(0.5,), std=(0.5,))


@pytest.mark.parametrize(
    ("spec", "other", "message"),
    [
        (
            text_spec(letters="abcd"),
            text_spec(letters="efgh"),
            r"m: was trained on text inputs \(12,\) .*, such as that of another tokenizer",
        ),
        (
            IMAGES,
            image_spec(shape=(3, 3, 1), classes=("a", "c"), mean=(0.5,), std=(0.5,)),
            r"m: was trained on image inputs \(3, 3, 1\) and 2 outputs \(a, b\), but d has .* 2 outputs \(a, c\): run",
        ),
        (with_inputs(IMAGES, white=4095), IMAGES, r"or another source\.white: run `dvc repro`"),
    ],
    ids=["tokenizer", "classes", "white"],
)
def test_other_data_of_an_equal_shape_are_refused(spec: Spec, other: Spec, message: str) -> None:
    refuse_other_data(spec, spec, model=Path("m"), data=Path("d"))
    with pytest.raises(Refusal, match=message):
        refuse_other_data(spec, other, model=Path("m"), data=Path("d"))


@pytest.mark.parametrize("other", [None, "step", "parameters"])
def test_a_model_without_a_run_gets_one_with_the_files_of_its_training(
    plotted_nothing: Path, tmp_path: Path, monkeypatch, other: str | None
) -> None:
    """But not with those of the training of another model."""
    folder = tmp_path / "clone"
    shutil.copytree(plotted_nothing, folder, symlinks=True, ignore=shutil.ignore_patterns(".pipeline"))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PIPELINE_TRACKING", "true")
    monkeypatch.setenv("PIPELINE_TRACKING_MIRROR", "false")
    if other == "step":
        files.write_json(folder / "metrics/train.json", {"exported_step": 7})
    if other == "parameters":
        project.write_params(folder, {"seed": 9})
    for _ in range(1 if other else 2):
        assert main(["evaluate"]) == 0
    [run] = journal.journals(folder)
    found = list(events.read(run / events.EVENTS))
    names = [name for event in found if event.kind == "metrics" for name in event.fields["values"]]
    assert len(names) == len(set(names)), "equal scores are recorded once"
    assert "test/accuracy" in names
    assert ("valid/accuracy" in names) == (other is None)
    assert ("plots/train" in {event.fields.get("folder") for event in found}) == (other is None)
    assert ("restored" in found[0].fields["provenance"]) == (other is None)
