"""The light of an image: against torchvision's, for each strength alone and all together."""

import pytest
import torch
from torchvision.transforms.v2 import functional

from pipeline.core.refusal import Refusal
from tests.specs import image_spec
from tests.train.augment.augmenting import COLOUR, augmentation, gathered, images, settings

WHOLE = 1024
STRENGTHS = ("brightness", "contrast", "saturation")


def dull(count: int) -> torch.Tensor:
    """Images that no factor below 1.3 makes white or black."""
    return images(count) // 4 + 90


def factors(draw: list[int]) -> tuple[float, float, float]:
    """Brightness, contrast and saturation that come to these shares of pixel, grey and mean grey."""
    own, grey, mean = (share / WHOLE for share in draw)
    brightness = own + grey + mean
    contrast = (own + grey) / brightness
    return brightness, contrast, own / (own + grey)


@pytest.mark.parametrize("wishes", [{name: 0.3} for name in STRENGTHS] + [dict.fromkeys(STRENGTHS, 0.2)], ids="+".join)
def test_the_light_changes_as_torchvision_changes_it(wishes: dict[str, float]) -> None:
    found, source = augmentation(40, **wishes), dull(40)
    for image, before, draw in zip(gathered(found, source), source, found.draw(0).T.tolist(), strict=True):
        expected = before.permute(2, 0, 1).float() / 255
        for name, factor in zip(STRENGTHS, factors(draw), strict=True):
            assert abs(factor - 1) <= wishes.get(name, 0.0) + 1e-3
            expected = getattr(functional, f"adjust_{name}")(expected, factor)
        assert (image.permute(2, 0, 1) - 255 * expected).abs().max() <= 2.0


def test_factors_cover_their_range() -> None:
    found = torch.tensor([factors(draw) for draw in augmentation(2000, **dict.fromkeys(STRENGTHS, 0.5)).draw(0).T.tolist()])
    assert (found.amin(0) - 0.5).abs().max() < 0.02
    assert (found.amax(0) - 1.5).abs().max() < 0.02


def test_what_is_too_strong_a_colour_loses_the_others_and_wraps_nowhere() -> None:
    found, source = augmentation(50, saturation=1.0), torch.tensor([200, 30, 30], dtype=torch.uint8).expand(50, *COLOUR.inputs.row_shape)
    images, stronger = gathered(found, source), found.draw(0)[0] > 1.8 * WHOLE
    assert stronger.any()
    assert (images[stronger][..., 0] == 255).all()
    assert (images[stronger][..., 1:] == 0).all()


@pytest.mark.parametrize(("name", "channels"), [("brightness", 2), ("contrast", 4), ("saturation", 1)])
def test_light_is_refused_for_channels_that_are_no_colours(name: str, channels: int) -> None:
    spec = image_spec(shape=(6, 5, channels), classes=("a", "b"), mean=(0.5,) * channels, std=(0.2,) * channels)
    with pytest.raises(Refusal, match=f"augment.{name}: needs images of .* channels, these have {channels}: write 0.0"):
        settings(**{name: 0.5}).refuse_misfit(*spec.inputs.row_shape)


def test_a_single_channel_is_its_own_grey() -> None:
    grey = image_spec(shape=(6, 5, 1), classes=("a", "b"), mean=(0.5,), std=(0.2,))
    source = torch.full((20, 6, 5, 1), 100, dtype=torch.uint8)
    assert torch.equal(gathered(augmentation(20, spec=grey, contrast=0.8), source), source)


def test_what_is_hidden_has_the_mean_colour_in_any_light() -> None:
    found = gathered(augmentation(20, brightness=0.5, cutout=12), images(20))
    assert found[:, 0, 0].unique(dim=0).tolist() == [[round(mean * 255) for mean in COLOUR.inputs.mean]]
