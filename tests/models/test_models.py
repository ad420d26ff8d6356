"""What every architecture promises: logits for each class, weights by seed alone, and a refusal of images that it cannot take."""

from typing import Any

import pytest
import torch
from torch import nn

from pipeline.core import seeding
from pipeline.core.refusal import Refusal
from pipeline.core.registry import MODELS
from pipeline.core.spec import Spec
from tests.laws.test_resuming import AIRBENCH, MOBILENET
from tests.specs import image_spec

CPU = torch.device("cpu")
SMALL: list[dict[str, Any]] = [
    {"name": "mlp", "weights": None, "width": 8, "depth": 1, "dropout": 0.1},
    {"name": "mlp", "weights": None, "width": 8, "depth": 3, "dropout": 0.0},
    {"name": "convnet", "weights": None, "width": 4, "dropout": 0.1},
    *({"name": "resnet", "weights": None, "depth": depth, "width": 8} for depth in (9, 12)),
    AIRBENCH,
    {"name": "linear", "weights": None},
    MOBILENET,
]
SHAPES = [(8, 8, 1), (9, 12, 3)]
TITLES = ["-".join(str(value) for value in settings.values() if value is not None) for settings in SMALL]


def spec_of(shape: tuple[int, int, int], classes: int = 3) -> Spec:
    channels = shape[2]
    return image_spec(shape=shape, classes=tuple(str(number) for number in range(classes)), mean=(0.5,) * channels, std=(0.2,) * channels)


def build(settings: dict[str, Any], spec: Spec, *, seed: int = 1) -> nn.Module:
    seeding.reseed(CPU, seed, "weights")
    network: nn.Module = MODELS.settings(settings["name"])(**settings).build(spec)
    return network


def images(spec: Spec, samples: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(samples, spec.inputs.channels, spec.inputs.height, spec.inputs.width, generator=generator)


@pytest.mark.parametrize("settings", SMALL, ids=TITLES)
def test_images_of_every_shape_become_logits_of_every_class(settings: dict[str, Any]) -> None:
    for shape, classes in zip(SHAPES, (2, 5), strict=True):
        spec = spec_of(shape, classes)
        network = build(settings, spec)
        assert network.training
        assert network(images(spec)).shape == (2, classes)


@pytest.mark.parametrize("settings", SMALL, ids=TITLES)
def test_the_seed_alone_decides_the_weights_and_a_state_restores_them(settings: dict[str, Any]) -> None:
    spec = spec_of((8, 8, 1))
    first, second, other = (build(settings, spec, seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(tensor, second.state_dict()[name]) for name, tensor in first.state_dict().items())
    assert any(not torch.equal(tensor, other.state_dict()[name]) for name, tensor in first.state_dict().items())
    other.load_state_dict(first.state_dict())
    with torch.no_grad():
        assert torch.equal(first.eval()(images(spec)), other.eval()(images(spec)))


def test_a_resnet_has_as_many_layers_with_weights_as_its_depth_says() -> None:
    for depth in (9, 10, 12, 14, 16, 18):
        network = build({"name": "resnet", "weights": None, "depth": depth, "width": 8}, spec_of((8, 8, 3)))
        layers = [name for name, layer in network.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear) and "shortcut" not in name]
        assert len(layers) == depth


@pytest.mark.parametrize(
    ("settings", "shape", "words"),
    [
        (SMALL[2], (3, 8, 1), "model.name: convnet needs images of at least 4x4, but these are 3x8: write `model.name: mlp`"),
        (SMALL[3], (8, 7, 1), "model.name: resnet needs images of at least 8x8, but these are 8x7: write `model.name: convnet`"),
        (SMALL[5], (1, 7, 1), "model.name: airbench needs images of at least 2x2, but these are 1x7: write `model.name: mlp`"),
    ],
    ids=["convnet", "resnet", "airbench"],
)
def test_images_that_are_too_small_are_refused_with_the_remedy(settings: dict[str, Any], shape: tuple[int, int, int], words: str) -> None:
    with pytest.raises(Refusal) as caught:
        build(settings, spec_of(shape))
    assert str(caught.value) == words
