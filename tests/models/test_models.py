"""What every architecture promises: logits for each class, weights by seed alone, and a refusal of images that it cannot take; the airbench network."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import unfold

from pipeline.core import seeding
from pipeline.core.refusal import Refusal
from pipeline.core.registry import MODELS
from pipeline.core.spec import Spec
from pipeline.models import airbench
from pipeline.train.beginning import example_inputs
from tests.laws.test_resuming import AIRBENCH, MOBILENET
from tests.specs import image_spec
from tests.train.engine.building import begin

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


AIRBENCH_SETTINGS = airbench.Settings(
    name="airbench", weights=None, block1_width=24, block2_width=32, block3_width=32, whiten_images=400, whiten_eps=1e-6
)


def spec_of_side(side: int) -> Spec:
    return image_spec(shape=(side, side, 3), classes=("a", "b", "c"), mean=(0.4,) * 3, std=(0.3,) * 3)


AIRBENCH_SPEC = spec_of_side(12)
SECTION = {**AIRBENCH_SETTINGS.model_dump(), "block1_width": 8, "block2_width": 8, "block3_width": 8, "whiten_images": 30}


def smooth(count: int) -> torch.Tensor:
    """Images whose neighbouring pixels and channels are alike, as in photographs, and as many as are asked for."""
    noise = torch.randn(count, 3, 14, 14, generator=torch.Generator().manual_seed(0))
    return nn.functional.avg_pool2d(noise, 3, stride=1) + noise.mean(dim=1, keepdim=True)[..., 1:-1, 1:-1]


def primed() -> nn.Sequential:
    torch.manual_seed(0)
    network = AIRBENCH_SETTINGS.build(AIRBENCH_SPEC)
    AIRBENCH_SETTINGS.initialize_weights(network, smooth)
    assert isinstance(network, nn.Sequential)
    return network


def test_whitened_patches_have_a_covariance_of_one() -> None:
    images = smooth(400)
    before = unfold(images, 2).transpose(0, 1).flatten(1)
    assert (before @ before.T / before.shape[1] - torch.eye(12)).norm() > 1
    whitening = primed()[0]
    assert isinstance(whitening, nn.Conv2d)
    after = nn.functional.conv2d(images, whitening.weight).transpose(0, 1).flatten(1)
    found = after @ after.T / after.shape[1]
    identity = torch.eye(12)
    assert torch.allclose(found, torch.cat((torch.cat((identity, -identity), 1), torch.cat((-identity, identity), 1))), atol=1e-3)


def test_the_whitening_weight_never_learns_and_its_bias_does() -> None:
    network = primed()
    learning = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    assert "0.weight" not in learning
    assert "0.bias" in learning
    assert not any(
        name.endswith("weight") for name in learning if network.get_submodule(name.rpartition(".")[0]).__class__ is airbench.Norm
    )


@pytest.mark.parametrize(("inputs", "outputs"), [(6, 6), (6, 10), (10, 6)])
def test_a_convolution_begins_by_passing_its_inputs_through(inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    images = torch.randn(2, inputs, 5, 5)
    found = airbench.convolution(inputs, outputs)(images)
    same = min(inputs, outputs)
    assert torch.allclose(found[:, :same], images[:, :same], atol=1e-6)
    assert outputs == same or found[:, same:].std() > 0.1


def test_the_head_has_weights_of_variance_one_and_small_logits() -> None:
    torch.manual_seed(0)
    head = airbench.Head(64, 10)
    features = torch.randn(5, 64)
    assert head.weight.std().item() == pytest.approx(1)
    assert torch.allclose(head(features), features @ head.weight.T / 64, rtol=1e-5, atol=1e-6)


def test_a_training_begins_from_its_train_split_whatever_the_memory_order(train_params, prepared) -> None:
    filters = []
    for channels_last in (False, True):
        training = begin(train_params({"model": SECTION, "train.channels_last": channels_last}), prepared)
        filters.append(training.state.model.network.get_parameter("0.weight"))
        images = example_inputs(training.state.model, prepared.train, 30)
        assert images.shape == (30, 1, 8, 8)
        spaced = torch.from_numpy(prepared.train.inputs[[at * len(prepared.train) // 30 for at in range(30)]])
        assert torch.equal(images, training.state.model.preprocessing(spaced))
        after = nn.functional.conv2d(images, filters[-1][:4]).transpose(0, 1).flatten(1)
        assert torch.allclose(after @ after.T / after.shape[1], torch.eye(4), atol=1e-2)
    assert torch.equal(*filters)
