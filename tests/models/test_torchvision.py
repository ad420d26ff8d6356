"""torchvision's architectures by name: stems, sizes, and pretrained weights without a network and without a pickle."""

import io
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torchvision import models

from pipeline.core.refusal import Refusal
from pipeline.core.spec import Spec
from pipeline.inference import networks
from pipeline.models.torchvision import Settings
from tests.specs import image_spec

MOBILENET = "mobilenet_v3_small"
FILE = "mobilenet_v3_small-047dcff4.pth"


def settings(architecture: str, stem: str = "original", weights: str | None = None) -> Settings:
    return Settings.model_validate(
        {"name": "torchvision", "weights": None, "architecture": architecture, "stem": stem, "pretrained": weights}
    )


def spec_of(height: int, width: int, channels: int) -> Spec:
    return image_spec(shape=(height, width, channels), classes=("a", "b", "c"), mean=(0.5,) * channels, std=(0.2,) * channels)


def extent_after(network: nn.Module, layer: nn.Module, side: int, channels: int) -> list[int]:
    """Height and width of what goes into a layer."""
    seen: list[int] = []
    layer.register_forward_pre_hook(lambda _module, inputs: seen.extend(inputs[0].shape[2:]))
    with torch.no_grad():
        network.eval()(torch.zeros(1, channels, side, side))
    return seen


@pytest.mark.parametrize(
    ("architecture", "stem", "spec"),
    [
        ("googlenet", "original", spec_of(32, 32, 3)),
        ("vit_b_16", "original", spec_of(16, 16, 1)),
        ("squeezenet1_1", "small", spec_of(8, 8, 1)),
    ],
    ids=["googlenet", "vit_b_16", "squeezenet1_1"],
)
def test_other_families_build_too(architecture: str, stem: str, spec: Spec) -> None:
    network = settings(architecture, stem).build(spec)
    assert network.training
    assert network(torch.zeros(2, spec.inputs.channels, spec.inputs.height, spec.inputs.width)).shape == (2, 3)


def test_a_small_stem_keeps_the_size_of_the_image_and_drops_the_pooling() -> None:
    for stem, side in (("original", 4), ("small", 16)):
        network: Any = settings("resnet18", stem).build(spec_of(16, 16, 1))
        assert extent_after(network, network.layer1, 16, 1) == [side, side]
    assert isinstance(network.maxpool, nn.Identity)
    shuffle: Any = settings("shufflenet_v2_x0_5", "small").build(spec_of(8, 8, 3))
    assert extent_after(shuffle, shuffle.stage2, 8, 3) == [8, 8]


def test_an_original_stem_for_colour_is_torchvisions_own() -> None:
    ours = settings(MOBILENET).build(spec_of(32, 32, 3)).state_dict()
    theirs = models.mobilenet_v3_small(num_classes=3).state_dict()
    assert {name: tensor.shape for name, tensor in ours.items()} == {name: tensor.shape for name, tensor in theirs.items()}


@pytest.mark.parametrize(("architecture", "spec"), [("alexnet", spec_of(8, 8, 3)), ("vit_b_16", spec_of(20, 20, 3))])
def test_images_of_a_size_that_an_architecture_does_not_take_are_refused(architecture: str, spec: Spec) -> None:
    with pytest.raises(
        Refusal, match=rf"model\.architecture: {architecture} with `stem: original` does not accept images of .*: raise source.image_size"
    ):
        settings(architecture).build(spec)


def test_unknown_names_are_answered_with_the_nearest_and_the_known() -> None:
    with pytest.raises(ValidationError, match="no classification architecture 'resnet81': did you mean `resnet18`"):
        settings("resnet81")
    with pytest.raises(ValidationError, match="no weights 'IMAGENET': choose one of IMAGENET1K_V1, DEFAULT, or null for random weights"):
        settings("resnet18", weights="IMAGENET")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where torch looks for downloaded weights."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub/checkpoints"
    folder.mkdir(parents=True)
    return folder


def no_examples(count: int) -> torch.Tensor:
    pytest.fail(f"looked at {count} images")


def initialized(architecture: str = MOBILENET) -> nn.Module:
    chosen = settings(architecture, weights="IMAGENET1K_V1")
    network = chosen.build(spec_of(32, 32, 3))
    chosen.initialize_weights(network, no_examples)
    return network


def test_pretrained_weights_are_taken_where_they_fit(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = models.mobilenet_v3_small()
    torch.save(whole.state_dict(), cache / FILE)
    network = initialized()
    fresh = {name for name, tensor in network.state_dict().items() if not tensor.equal(whole.state_dict()[name])}
    assert fresh == {"classifier.3.weight", "classifier.3.bias"}, "only the head of other classes begins anew"
    total = len(whole.state_dict())
    assert f"train: {total - 2} of {total} tensors start from pretrained weights" in capsys.readouterr().out


def test_an_architecture_that_asks_for_its_version_takes_tensors_by_name() -> None:
    network = settings("mnasnet0_5").build(spec_of(32, 32, 3))
    networks.load(network, dict(network.state_dict()))


def test_an_unreachable_network_is_answered_with_the_place_for_the_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr("torch.hub.download_url_to_file", unreachable)
    with pytest.raises(Refusal) as caught:
        initialized()
    assert str(caught.value) == (
        "model.pretrained: IMAGENET1K_V1 cannot be downloaded (<urlopen error Name or service not known>): "
        f"put {FILE} into {cache}, or write `model.pretrained: null`"
    )


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("was-run"),)


def evil() -> bytes:
    stream = io.BytesIO()
    torch.save({"weight": Evil()}, stream)
    return stream.getvalue()


@pytest.mark.parametrize("content", [b"not weights at all", evil()], ids=["text", "pickle"])
def test_a_file_that_holds_no_weights_is_refused_and_nothing_in_it_runs(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    (cache / FILE).write_bytes(content)
    with pytest.raises(Refusal, match=rf"model\.pretrained: {cache / FILE}: is not a complete weights file: remove this file"):
        initialized()
    assert not Path("was-run").exists()
