"""The airbench network: whitened patches, convolutions that begin as the identity, and norms without a scale."""

import pytest
import torch
from torch import nn
from torch.nn.functional import unfold

from pipeline.core.spec import Spec
from pipeline.models import airbench
from pipeline.train.beginning import example_inputs
from tests.specs import image_spec
from tests.train.engine.building import begin

SETTINGS = airbench.Settings(
    name="airbench", weights=None, block1_width=24, block2_width=32, block3_width=32, whiten_images=400, whiten_eps=1e-6
)


def spec_of(side: int) -> Spec:
    return image_spec(shape=(side, side, 3), classes=("a", "b", "c"), mean=(0.4,) * 3, std=(0.3,) * 3)


SPEC = spec_of(12)
SECTION = {**SETTINGS.model_dump(), "block1_width": 8, "block2_width": 8, "block3_width": 8, "whiten_images": 30}


def smooth(count: int) -> torch.Tensor:
    """Images whose neighbouring pixels and channels are alike, as in photographs, and as many as are asked for."""
    noise = torch.randn(count, 3, 14, 14, generator=torch.Generator().manual_seed(0))
    return nn.functional.avg_pool2d(noise, 3, stride=1) + noise.mean(dim=1, keepdim=True)[..., 1:-1, 1:-1]


def primed() -> nn.Sequential:
    torch.manual_seed(0)
    network = SETTINGS.build(SPEC)
    SETTINGS.initialize_weights(network, smooth)
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


@pytest.mark.parametrize("side", [2, 3, 9])
def test_small_images_are_pooled_no_further_than_to_a_pixel(side: int) -> None:
    network = SETTINGS.build(spec_of(side))
    assert network(torch.randn(4, 3, side, side)).shape == (4, 3)


def test_a_training_begins_from_its_train_split_whatever_the_memory_order(train_params, prepared) -> None:
    filters = []
    for channels_last in (False, True):
        training = begin(train_params({"model": SECTION, "train.channels_last": channels_last}), prepared)
        filters.append(training.state.model.network.get_parameter("0.weight"))
        images = example_inputs(training.state.model, prepared.train, 30)
        assert images.shape == (30, 1, 8, 8)
        after = nn.functional.conv2d(images, filters[-1][:4]).transpose(0, 1).flatten(1)
        assert torch.allclose(after @ after.T / after.shape[1], torch.eye(4), atol=1e-2)
    assert torch.equal(*filters)
