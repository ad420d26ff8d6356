"""Normalisation: right, in the memory order that was asked for, and on a copy."""

import pytest
import torch

from pipeline.inference.inputs.image import Preprocessing
from tests.specs import image_spec


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_images_are_normalised_on_a_copy(channels: int, channels_last: bool, dtype: torch.dtype) -> None:
    mean, std = (0.2, 0.5, 0.7)[:channels], (0.1, 0.3, 0.4)[:channels]
    spec = image_spec(shape=(4, 5, channels), classes=("a", "b"), mean=mean, std=std)
    images = torch.randint(0, 256, (2, 4, 5, channels)).to(dtype)
    before = images.clone()
    found = Preprocessing(spec.inputs, channels_last=channels_last)(images)
    expected = (before.double() / 255 - torch.tensor(mean, dtype=torch.float64)) / torch.tensor(std, dtype=torch.float64)
    assert torch.equal(images, before)
    assert torch.allclose(found.permute(0, 2, 3, 1).double(), expected, atol=1e-5)
    assert found.stride() == ((20 * channels, 1, 5 * channels, channels) if channels_last else (20 * channels, 20, 5, 1))
