"""Each architecture's float32 gradient equals that of float64, in every repetition and in both memory formats.

oneDNN has had convolutions whose weight gradient read uninitialised memory. Such a fault is found here, and not first in a result.
"""

import pytest
import torch

from pipeline.engine.model import Model
from pipeline.registry import MODELS
from pipeline.spec import Spec
from tests.engine.building import model_of
from tests.models import text_models
from tests.specs import image_spec

SIXTEEN = image_spec(shape=(16, 16, 3), classes=("a", "b", "c"), mean=(0.5,) * 3, std=(0.25,) * 3)
GREY = image_spec(shape=(8, 8, 1), classes=("a", "b", "c"), mean=(0.5,), std=(0.25,))
SMALLEST = [
    {"name": "mlp", "weights": None, "width": 3, "depth": 2, "dropout": 0.0},
    {"name": "convnet", "weights": None, "width": 1, "dropout": 0.0},
    {"name": "resnet", "weights": None, "width": 8, "depth": 9},
    {"name": "resnet", "weights": None, "width": 8, "depth": 18},
    {
        "name": "airbench",
        "weights": None,
        "block1_width": 8,
        "block2_width": 16,
        "block3_width": 16,
        "whiten_images": 20,
        "whiten_eps": 5e-4,
    },
    {"name": "torchvision", "weights": None, "architecture": "mobilenet_v3_small", "stem": "small", "pretrained": None},
]


def gradient(model: Model, images: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    # in inference mode: no dropout, and no small batch statistics that would magnify the last digit
    model.eval()(images).square().sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.requires_grad])


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("spec", [SIXTEEN, GREY], ids=["colour", "grey"])
@pytest.mark.parametrize("section", SMALLEST, ids=lambda section: f"{section['name']}{section.get('depth', '')}")
def test_gradients_are_right_and_the_same_every_time(section, spec: Spec, channels_last: bool) -> None:
    torch.manual_seed(0)
    network = MODELS.settings(section["name"])(**section).build(spec)
    model = model_of(network, spec, channels_last=channels_last)
    images = torch.randint(0, 256, (8, *spec.inputs.row_shape), dtype=torch.uint8)
    found = []
    for fill in range(4):
        dirt = [torch.full((size,), 1e3 * fill) for size in (500, 3_000, 20_000)]
        del dirt  # what is allocated next is likely to lie on this memory
        found.append(gradient(model, images))
    exact = gradient(model.double(), images)
    assert all(torch.equal(found[0], other) for other in found)
    assert (found[0] - exact).norm() / exact.norm() < 1e-4


@pytest.mark.parametrize("section", text_models.CLASSIFIERS + text_models.LANGUAGE_MODELS, ids=text_models.title)
def test_gradients_of_text_models_are_right_and_the_same_every_time(section) -> None:
    model = Model(text_models.build(section, length=16), torch.nn.Identity())
    tokens = text_models.texts([16, 9, 1, 0, 16, 5, 12, 16], padded_to=16)
    found = []
    for fill in range(4):
        dirt = [torch.full((size,), 1e3 * fill) for size in (500, 3_000, 20_000)]
        del dirt
        found.append(gradient(model, tokens))
    exact = gradient(model.double(), tokens)
    assert all(torch.equal(found[0], other) for other in found)
    assert (found[0] - exact).norm() / exact.norm() < 1e-4
