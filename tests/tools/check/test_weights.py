"""`check` refuses starting weights and patterns of parameters that cannot be used, before DVC deletes anything."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.inference.params import WEIGHTS_FOLDER
from pipeline.tools.check import command as check
from tests import project

Refused = Callable[..., list[str]]
BASE = WEIGHTS_FOLDER / "base.safetensors"
MLP = {"name": "mlp", "weights": BASE.name, "width": 16, "depth": 2, "dropout": 0.0}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project after `prepare` and `train`, with a copy of its model in `data/weights/`."""
    folder = project.make(tmp_path_factory.mktemp("trained"), {"train.steps": 4, "train.report_every_steps": 4})
    project.run(folder, "prepare", "train")
    shutil.copy(folder / "models/model.safetensors", folder / BASE)
    return folder


@pytest.fixture
def change(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], None]:
    monkeypatch.chdir(trained)
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    monkeypatch.setattr(check, "would_run", lambda _stage: False)
    return lambda changes: project.write_params(trained, {"train.steps": 4, "train.report_every_steps": 4, **changes})


def group(*patterns: str, lr_scale: float = 0.1, weight_decay: float | None = None) -> dict[str, Any]:
    return {"patterns": list(patterns), "lr_scale": lr_scale, "weight_decay": weight_decay}


def test_a_model_of_the_same_architecture_is_accepted(change, capsys: pytest.CaptureFixture[str]) -> None:
    change({"model": MLP, "train.freeze": ["1.*"], "optimizer.groups": [group("2.*")], "optimizer.layer_decay": 0.75})
    assert main(["check"]) == 0
    assert "is valid: mlp on digits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("base.pth", "is a pickle, which can run any code when it is read: convert it, as docs/fine-tuning.md shows"),
        ("/base.safetensors", "should be a path inside data/weights/: copy the file into this folder, and write its name"),
        ("../base.safetensors", "should be a path inside data/weights/"),
        ("None", "should be the name of a file or folder, or null: write `weights: null`"),
        ("other.safetensors", "data/weights/other.safetensors: is missing: copy the file to this path, or write `weights: null`"),
    ],
)
def test_a_name_that_is_no_file_of_weights_is_refused_with_its_line(change, refused: Refused, weights: str, message: str) -> None:
    change({"model": {**MLP, "weights": weights}})
    [said] = refused("check")
    assert re.match(r"params\.yaml:\d+: model\.weights: ", said)
    assert message in said


def test_another_architecture_and_a_damaged_file_are_refused_with_the_line(change, refused: Refused) -> None:
    change({"model": {**MLP, "width": 17}})
    [said] = refused("check")
    assert re.match(
        r"params\.yaml:\d+: model\.weights: data/weights/base\.safetensors: its model, mlp, has another architecture than this", said
    )
    content = BASE.read_bytes()
    BASE.write_bytes(content[:-1] + b"x")
    change({"model": MLP})
    try:
        [said] = refused("check")
    finally:
        BASE.write_bytes(content)
    assert re.match(r"params\.yaml:\d+: model\.weights: .*: is damaged", said)


@pytest.mark.parametrize(
    ("changes", "key", "message", "weights"),
    [
        ({"train.freeze": ["hidden.*"]}, "train.freeze", "hidden.* matches no parameter: the nearest are", BASE.name),
        ({"optimizer.groups": [group("1.*"), group("9.*")]}, "optimizer.groups.1.patterns", "9.* matches no parameter", None),
    ],
    ids=["with a file", "with an example of the data"],
)
def test_patterns_that_do_not_fit_the_network_are_refused_with_their_line(
    change, refused: Refused, changes: dict[str, Any], key: str, message: str, weights: str | None
) -> None:
    change({"model": {**MLP, "weights": weights}, **changes})
    [said] = refused("check")
    place, named, *_ = said.split(": ")
    assert named == key
    section, name = key.split(".")[:2]
    text = Path("params.yaml").read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(text) if line.startswith(f"{section}:"))
    start = next(number for number, line in enumerate(text) if number > first and line.startswith(f"  {name}:"))
    assert start + 1 <= int(place.removeprefix("params.yaml:")) <= start + 10
    assert message in said


def test_muons_normalised_weights_have_no_decay_of_their_own(change, refused: Refused) -> None:
    muon = {"name": "muon", "learning_rate": 0.1, "weight_decay": 0.0, "bias_lr_scale": 1.0, "layer_decay": None, "outer_lr_scale": 1.0}
    muon |= {"momentum": 0.9, "sgd_momentum": 0.9, "nesterov": True, "ns_steps": 3, "normalize_weights": True}
    change({"model": MLP, "optimizer": {**muon, "groups": [group("1.*", weight_decay=0.1)]}})
    [said] = refused("check")
    assert (
        "optimizer.normalize_weights: rescales the hidden weights instead of applying weight decay, so no group can have a weight decay of its own: write `weight_decay: null`"
        in said
    )
    change({"model": MLP, "optimizer": {**muon, "groups": [group("1.*")]}})
    assert main(["check"]) == 0


def test_published_weights_and_a_file_exclude_each_other(change, refused: Refused) -> None:
    model = {"name": "torchvision", "weights": BASE.name, "architecture": "resnet18", "stem": "small", "pretrained": "IMAGENET1K_V1"}
    change({"model": model})
    [said] = refused("check")
    assert "model.pretrained: cannot be combined with model.weights: write null for one of the two" in said


@pytest.mark.parametrize(
    ("setting", "changes", "message"),
    [
        ("digits", {"train.freeze": ["hidden.*"]}, "train.freeze: hidden.* matches no parameter"),
        ("texts", {"model.pooling": None}, "model.pooling: a classifier needs one vector for each text"),
        ("code-lstm", {"model.bidirectional": True}, "model.bidirectional: a language model must not read the tokens that it predicts"),
    ],
)
def test_a_setting_of_the_model_that_does_not_fit_the_task_is_refused_before_any_stage_has_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused, setting: str, changes: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(project.make(tmp_path, changes, setting=setting))
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    [said] = refused("check")
    assert re.match(r"params\.yaml:\d+: ", said)
    assert message in said
