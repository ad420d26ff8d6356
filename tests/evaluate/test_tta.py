"""Views of an image: where their pixels come from, and that the weights are whole."""

import pytest
import torch
from torch import nn

from pipeline.evaluate import tta

IMAGES = torch.arange(2 * 4 * 5 * 3, dtype=torch.uint8).view(2, 4, 5, 3)


class Corner(nn.Module):
    """The first pixel, as logits."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images[:, 0, 0].float()


@pytest.mark.parametrize(("wish", "count"), [("none", 1), ("mirror", 2), ("mirror_translate", 6)])
def test_all_weights_together_are_one_and_no_two_views_are_equal(wish: tta.Views, count: int) -> None:
    weights, found = zip(*tta.views(IMAGES, wish), strict=True)
    assert sum(weights) == 1
    assert len({tuple(view.flatten().tolist()) for view in found}) == len(found) == count
    assert all(view.shape == IMAGES.shape and view.dtype == torch.uint8 for view in found)


def test_a_moved_image_is_a_window_of_the_reflected_one() -> None:
    wide = nn.functional.pad(IMAGES.permute(0, 3, 1, 2).float(), (1,) * 4, mode="reflect").permute(0, 2, 3, 1).to(torch.uint8)
    assert torch.equal(tta.moved(IMAGES, -1), wide[:, :-2, :-2])
    assert torch.equal(tta.moved(IMAGES, 1), wide[:, 2:, 2:])


def test_a_single_pixel_stays_where_it_is() -> None:
    pixel = IMAGES[:, :1, :1]
    assert all(torch.equal(tta.moved(pixel, by), pixel) for by in (-1, 1))


def test_the_logits_are_averaged_by_the_weights() -> None:
    first = IMAGES.float()
    expected = 0.25 * (first[:, 0, 0] + first[:, 0, 4]) + 0.125 * (first[:, 1, 1] + first[:, 1, 3]) * 2
    assert torch.allclose(tta.Averaged(Corner(), "mirror_translate")(IMAGES), expected)
    assert torch.equal(tta.Averaged(Corner(), "none")(IMAGES), first[:, 0, 0])


def test_the_mode_of_the_model_is_kept() -> None:
    model = Corner().eval()
    assert not tta.Averaged(model, "mirror").training
    assert not model.training
