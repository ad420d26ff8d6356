"""Resized windows: against torchvision's, and where their draws lie."""

import pytest
import torch
from torchvision.transforms.v2 import functional

from tests.specs import image_spec
from tests.train.augment.augmenting import augmentation, gathered, images

SHAPE = (23, 17, 3)
SPEC = image_spec(shape=SHAPE, classes=("a", "b"), mean=(0.5,) * 3, std=(0.2,) * 3)


def test_a_window_is_resized_as_torchvision_does() -> None:
    found, source = augmentation(60, spec=SPEC, resized_crop=0.05), images(60, SHAPE)
    for image, before, (top, left, height, width) in zip(gathered(found, source), source, found.draw(0).T.tolist(), strict=True):
        expected = functional.resized_crop(before.permute(2, 0, 1).float(), top, left, height, width, list(SHAPE[:2]), antialias=False)
        assert (image.permute(2, 0, 1) - expected).abs().max() <= 1.5, (top, left, height, width)  # 256ths of a pixel, and rounding


def test_the_whole_window_is_the_image_itself() -> None:
    found, source = augmentation(4, spec=SPEC, resized_crop=0.5), images(4, SHAPE)
    whole = torch.tensor([0, 0, SHAPE[0], SHAPE[1]])[:, None].expand(-1, 4)
    assert torch.equal(found.gather(found.packed(source), torch.arange(4), whole), source)


def test_windows_lie_in_the_image_and_have_the_area_and_shape_that_was_asked_for() -> None:
    least, spec = 0.08, image_spec(shape=(200, 150, 3), classes=("a", "b"), mean=(0.5,) * 3, std=(0.2,) * 3)
    top, left, height, width = augmentation(4000, spec=spec, resized_crop=least).draw(0).double()
    assert min(top.min(), left.min()) >= 0
    assert ((top + height <= 200) & (left + width <= 150)).all()
    area, shape = height * width / (200 * 150), width / height
    assert least * 0.98 <= area.min() < least * 1.1
    assert 0.9 < area.max() <= 1
    assert shape.min() == pytest.approx(3 / 4, abs=0.02)
    assert shape.max() == pytest.approx(4 / 3, abs=0.03)
    assert abs((top / (200 - height).clamp(min=1)).mean() - 0.5) < 0.05
    assert abs((left / (150 - width).clamp(min=1)).mean() - 0.5) < 0.05


def test_where_no_window_fits_it_is_the_whole_image() -> None:
    ribbon = image_spec(shape=(4, 400, 1), classes=("a", "b"), mean=(0.5,), std=(0.2,))
    assert augmentation(5, spec=ribbon, resized_crop=0.9).draw(0).T.tolist() == [[0, 0, 4, 400]] * 5


def test_a_window_has_at_least_one_pixel() -> None:
    tiny = image_spec(shape=(2, 2, 3), classes=("a", "b"), mean=(0.5,) * 3, std=(0.2,) * 3)
    _, _, height, width = augmentation(500, spec=tiny, resized_crop=0.01).draw(0)
    assert (set(height.tolist()), set(width.tolist())) == ({1, 2}, {1, 2})
