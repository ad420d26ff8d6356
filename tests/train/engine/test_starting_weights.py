"""A network that starts from a file: what fits is taken, what does not is named, and another architecture is refused."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from pipeline.core import files
from pipeline.core.refusal import Refusal
from pipeline.core.registry import MODELS
from pipeline.core.spec import Spec
from pipeline.core.tokenizer_description import NUM_SPECIAL
from pipeline.inference import model_file, tensor_file
from pipeline.inference.model_file import Manifest
from pipeline.inference.params import WEIGHTS_FOLDER, ModelSettings
from pipeline.models import convnet, torchvision
from pipeline.train import beginning
from tests.models import text_models
from tests.specs import image_spec, text_spec
from tests.train.engine.building import begin

BASE = WEIGHTS_FOLDER / "base.safetensors"
TWO = image_spec(shape=(8, 8, 1), classes=("cat", "dog"), mean=(0.4,), std=(0.3,))
FIVE = image_spec(shape=(8, 8, 1), classes=tuple("abcde"), mean=(0.5,), std=(0.2,))
COLOUR = image_spec(shape=(8, 8, 3), classes=("cat", "dog"), mean=(0.5,) * 3, std=(0.2,) * 3)


def settings(width: int = 8) -> convnet.Settings:
    return convnet.Settings(name="convnet", weights=Path(BASE.name), width=width, dropout=0.0)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    WEIGHTS_FOLDER.mkdir(parents=True)


def write(model: ModelSettings, spec: Spec, *, bf16_weights: bool = False) -> dict[str, torch.Tensor]:
    """Write the file of a model with random weights and statistics, and return its tensors."""
    torch.manual_seed(7)
    kind = torch.bfloat16 if bf16_weights else torch.float32
    tensors = {
        name: torch.rand(tensor.shape).to(kind if "running" not in name and ".1." not in name and ".4." not in name else tensor.dtype)
        if tensor.is_floating_point()
        else tensor + 5
        for name, tensor in model.build(spec).state_dict().items()
    }
    params: dict[str, Any] = {"model": model.model_dump(mode="json"), "train": {"deterministic": True, "channels_last": False}}
    precision = "bf16-true" if bf16_weights else "fp32"
    model_file.export(BASE, tensors, Manifest(params=params, spec=spec, precision=precision, step=1, inputs={}, fingerprint={}))  # type: ignore[arg-type]
    return tensors


def loaded(model: ModelSettings, spec: Spec) -> tuple[dict[str, torch.Tensor], frozenset[str]]:
    network: nn.Module = model.build(spec)
    untrained = beginning.load_weights(network, model, spec)
    return network.state_dict(), untrained


def test_the_same_data_take_every_tensor(capsys: pytest.CaptureFixture[str]) -> None:
    expected = write(settings(), TWO)
    tensors, untrained = loaded(settings(), TWO)
    assert untrained == frozenset()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors.items())
    assert capsys.readouterr().out == f"train: {len(expected)} of {len(expected)} tensors start from {BASE}\n"


def test_a_head_of_other_classes_keeps_its_initial_weights_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    expected = write(settings(), TWO)
    torch.manual_seed(1)
    fresh = settings().build(FIVE).state_dict()
    torch.manual_seed(1)
    tensors, untrained = loaded(settings(), FIVE)
    assert untrained == {"8.weight", "8.bias"}
    for name, tensor in tensors.items():
        assert torch.equal(tensor, fresh[name] if name in untrained else expected[name])
    assert capsys.readouterr().out == (
        f"train: {len(expected) - 2} of {len(expected)} tensors start from {BASE}; untrained, because the file lacks them or the data differ: "
        "8.weight (float32 (2, 32) in the file, not float32 (5, 32)), 8.bias (float32 (2,) in the file, not float32 (5,))\n"
    )


def test_a_head_of_as_many_other_classes_is_not_taken_either(capsys: pytest.CaptureFixture[str]) -> None:
    expected = write(settings(), TWO)
    others = image_spec(shape=(8, 8, 1), classes=("dog", "cat"), mean=(0.4,), std=(0.3,))
    tensors, untrained = loaded(settings(), others)
    assert untrained == {"8.weight", "8.bias"}
    assert not torch.equal(tensors["8.weight"], expected["8.weight"])
    assert "8.weight (of other classes or tokens), 8.bias (of other classes or tokens)\n" in capsys.readouterr().out


def test_weights_in_bf16_become_those_of_the_network() -> None:
    expected = write(settings(), TWO, bf16_weights=True)
    assert expected["8.weight"].dtype == torch.bfloat16
    tensors, _ = loaded(settings(), TWO)
    assert tensors["8.weight"].dtype == torch.float32
    assert torch.equal(tensors["8.weight"], expected["8.weight"].float())


def test_another_architecture_is_refused_with_the_first_tensors_that_differ() -> None:
    write(settings(width=4), TWO)
    with pytest.raises(Refusal) as caught:
        loaded(settings(), TWO)
    assert str(caught.value).startswith(
        f"model.weights: {BASE}: its model, convnet, has another architecture than this convnet (0.0.weight is float32 (4, 1, 3, 3), not float32 (8, 1, 3, 3); "
    )


def plain(
    model: ModelSettings, spec: Spec, change: Callable[[dict[str, torch.Tensor]], object] = lambda _: None
) -> dict[str, torch.Tensor]:
    """Write the tensors alone, as another program would."""
    tensors = {
        name: torch.rand_like(tensor) if tensor.is_floating_point() else tensor for name, tensor in model.build(spec).state_dict().items()
    }
    change(tensors)
    save_file(tensors, BASE)
    return tensors


def test_torchvisions_own_weights_are_taken_from_a_file_of_tensors(capsys: pytest.CaptureFixture[str]) -> None:
    model = torchvision.Settings(
        name="torchvision", weights=Path(BASE.name), architecture="squeezenet1_1", stem="original", pretrained=None
    )
    expected = plain(model, image_spec(shape=(32, 32, 3), classes=tuple(map(str, range(1000))), mean=(0.5,) * 3, std=(0.2,) * 3))
    spec = image_spec(shape=(32, 32, 3), classes=("cat", "dog"), mean=(0.5,) * 3, std=(0.2,) * 3)
    tensors, untrained = loaded(model, spec)
    assert untrained == {"classifier.1.weight", "classifier.1.bias"}
    assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors.items() if name not in untrained)
    assert "(float32 (1000, 512, 1, 1) in the file, not float32 (2, 512, 1, 1))" in capsys.readouterr().out


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("0.0.weight"),
        lambda tensors: tensors.update({"4.3.weight": torch.zeros(1), "4.0.weight": torch.zeros(1)}),
    ],
    ids=["a layer less", "most values of another shape"],
)
def test_tensors_of_another_architecture_are_refused(change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    plain(settings(), TWO, change)
    with pytest.raises(Refusal, match=r"model\.weights: .*: its tensors belong to another architecture than this convnet \("):
        loaded(settings(), TWO)


def test_the_digest_is_that_of_the_file_or_of_all_files_of_a_folder() -> None:
    write(settings(), TWO)
    assert beginning.weights_digest(BASE) == files.digest(BASE)
    assert beginning.weights_digest(None) is None
    whole = beginning.weights_digest(BASE.parent)
    (BASE.parent / "more.safetensors").write_bytes(b"")
    assert beginning.weights_digest(BASE.parent) != whole
    BASE.unlink()
    with pytest.raises(Refusal, match=f"{BASE}: is missing: copy the file to this path, or write `weights: null`"):
        beginning.weights_digest(BASE)


@pytest.mark.parametrize(("ema", "precision"), [(0.9, "fp32"), (0.0, "bf16-true")])
def test_a_training_starts_from_the_file_and_its_average_too(train_params, prepared, ema: float, precision: str) -> None:
    expected = write(settings(), TWO)
    changes = {"model": settings().model_dump(mode="json"), "train.ema_decay": ema, "train.precision": precision}
    sgd = {"name": "sgd", "learning_rate": 0.1, "weight_decay": 0.0, "bias_lr_scale": 1.0, "layer_decay": None, "groups": []}
    training = begin(train_params({**changes, "optimizer": {**sgd, "momentum": 0.0, "nesterov": False}}), prepared)
    for model in (training.state.model, training.state.scored):
        for name, tensor in model.network.state_dict().items():
            assert name.startswith("8.") or torch.equal(tensor, expected[name].to(tensor.dtype)), name


def test_an_untrained_head_cannot_be_frozen(train_params, prepared) -> None:
    write(settings(), TWO)
    with pytest.raises(Refusal, match=r"train\.freeze: freezes 8\.bias, 8\.weight, which the file of model\.weights does not supply"):
        begin(train_params({"model": settings().model_dump(mode="json"), "train.freeze": ["8.*"]}), prepared)


@pytest.mark.parametrize("section", [text_models.LANGUAGE_MODELS[0], text_models.LANGUAGE_MODELS[-1]], ids=text_models.title)
def test_a_vocabulary_of_other_tokens_starts_untrained_and_a_longer_text_does_not(section: dict[str, Any]) -> None:
    model = MODELS.settings(section["name"])(**section | {"weights": Path(BASE.name)})
    old = write(model, text_spec(letters="abcdefgh"))
    of_tokens = {name for name, tensor in old.items() if 8 + NUM_SPECIAL in tensor.shape}
    assert of_tokens
    _, untrained = loaded(model, text_spec(letters="ijklmnop"))
    assert untrained == of_tokens, "as many tokens, but other ones"
    _, untrained = loaded(model, text_spec(letters="abcdefgh", length=20))
    assert untrained == {name for name, tensor in old.items() if name.endswith("positions.weight")}


@pytest.mark.parametrize(
    ("changes", "prefix"),
    [({"train.export_weights": "best"}, "best"), ({"train.export_weights": "last"}, "average"), ({"train.ema_decay": 0.0}, "network")],
)
def test_a_checkpoint_starts_a_training_from_the_weights_that_would_have_been_exported(
    train_params, prepared, tmp_path: Path, changes, prefix: str
) -> None:
    model = {**settings().model_dump(mode="json"), "weights": None}
    common = {"model": model, "train.steps": 6, "train.epochs": None, "train.validate_every_steps": 3, "train.report_every_steps": 3}
    before = begin(train_params({**common, "train.export_weights": "last", "train.ema_decay": 0.9, **changes}), prepared, tmp_path)
    list(before.reports())
    assert before.save_now()
    tensors, _ = tensor_file.load(before.saver.checkpoints.paths()[-1])
    shutil.copy(before.saver.checkpoints.paths()[-1], BASE)
    found, untrained = loaded(settings(), prepared.spec)
    assert untrained == frozenset()
    assert all(torch.equal(found[name], tensors[f"{prefix}/{name}"]) for name in found)
    assert found.keys() == before.exported()[0].keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in before.exported()[0].items())


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (
            lambda tensors, _: tensors["network/8.weight"].fill_(torch.nan),
            "is a checkpoint whose weights are not finite: choose an earlier one",
        ),
        (lambda _, metadata: metadata.update(frozen=True), "is a checkpoint of a training that froze weights"),
        (lambda tensors, _: tensors.pop("manifest"), "is a checkpoint of another version of this pipeline"),
        (lambda tensors, _: tensors.update(manifest=torch.zeros(3)), "is a checkpoint of another version of this pipeline"),
        (
            lambda tensors, _: tensors.update(manifest=torch.zeros(3, dtype=torch.uint8)),
            "is a checkpoint of another version of this pipeline",
        ),
        (lambda tensors, _: tensors.update(manifest=torch.tensor([91, 93], dtype=torch.uint8)), "is a checkpoint of another version"),
    ],
)
def test_a_checkpoint_without_the_weights_is_refused(train_params, prepared, tmp_path: Path, spoil, reason: str) -> None:
    model = {**settings().model_dump(mode="json"), "weights": None}
    before = begin(train_params({"model": model, "train.ema_decay": 0.0}), prepared, tmp_path)
    assert before.save_now()
    tensors, metadata = tensor_file.load(before.saver.checkpoints.paths()[-1])
    spoil(tensors, metadata)
    tensor_file.save(BASE, tensors, metadata)
    with pytest.raises(Refusal, match=f"model.weights: {BASE}: {reason}"):
        loaded(settings(), prepared.spec)
