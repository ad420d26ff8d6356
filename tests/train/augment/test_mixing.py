"""Two samples in one: the image shows of each what the target says."""

import pytest
import torch

from pipeline.train.augment.augmentation import Augmentation
from tests.specs import image_spec
from tests.train.augment.augmenting import augmentation

SPEC = image_spec(shape=(9, 7, 3), classes=("a", "b", "c"), mean=(0.5,) * 3, std=(0.2,) * 3)
COUNT = 2000


def mixed(found: Augmentation, draws: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Black images of the class 0, each with a white one of the class 2."""
    black = torch.zeros((draws.shape[1], *SPEC.inputs.row_shape), dtype=torch.uint8)
    classes = torch.zeros(draws.shape[1], dtype=torch.int64)
    return found.mix(black, black + 255, classes, classes + 2, draws)


@pytest.mark.parametrize("wishes", [{"mixup": 0.4}, {"cutmix": 1.0}, {"mixup": 0.8, "cutmix": 1.0}], ids="+".join)
def test_the_target_has_of_each_class_what_the_image_shows(wishes: dict[str, float]) -> None:
    found = augmentation(COUNT, spec=SPEC, **wishes)
    images, targets = mixed(found, found.draw(0))
    assert (images.dtype, targets.dtype, tuple(targets.shape)) == (torch.uint8, torch.float32, (COUNT, 3))
    shown = images.double().mean((1, 2, 3)) / 255
    assert (targets[:, 2] - shown).abs().max() < 0.5 / 255 + 1e-6
    assert targets.sum(1).tolist() == pytest.approx([1.0] * COUNT)
    assert (targets[:, 1] == 0).all()


def test_mixup_is_the_same_in_all_pixels_and_its_shares_are_of_beta() -> None:
    found = augmentation(COUNT, spec=SPEC, mixup=0.4)
    images, targets = mixed(found, found.draw(0))
    assert (images == images[:, :1, :1, :1]).all()
    share = targets[:, 2]
    assert share.mean() == pytest.approx(0.5, abs=0.03)
    assert share.var() == pytest.approx(1 / (4 * (2 * 0.4 + 1)), abs=0.02)


def test_cutmix_replaces_one_rectangle_anywhere() -> None:
    found = augmentation(COUNT, spec=SPEC, cutmix=1.0)
    images, targets = mixed(found, found.draw(0))
    white = images[..., 0] == 255
    assert set(images.unique().tolist()) == {0, 255}
    rows, columns = white.any(2), white.any(1)
    assert torch.equal(white, rows[:, :, None] & columns[:, None, :])
    for line in (rows, columns):
        changes = (line[:, 1:] != line[:, :-1]).sum(1)
        assert changes.max() <= 2  # one piece, without a gap
        assert line.any(0).all()  # which comes everywhere
    assert 0.25 < targets[:, 2].mean() < 0.5  # what lies outside is lost


def test_with_both_every_sample_has_one_of_the_two_at_even_odds() -> None:
    draws = augmentation(COUNT, spec=SPEC, mixup=1.0, cutmix=1.0).draw(0)
    laid_over, cut = draws[0] > 0, (draws[3:] > 0).all(0)
    assert not (laid_over & cut).any()
    assert 0.45 < laid_over.double().mean() < 0.55
    assert 0.4 < cut.double().mean() < 0.55  # some pieces are too small for a pixel
    one, other = augmentation(COUNT, spec=SPEC, mixup=1.0).draw(0), augmentation(COUNT, spec=SPEC, cutmix=1.0).draw(0)
    assert torch.equal(draws[0, laid_over], one[0, laid_over])
    assert torch.equal(draws[1:, cut], other[1:, cut])


def test_equal_classes_stay_one_class() -> None:
    found = augmentation(40, spec=SPEC, mixup=1.0)
    noise, classes = torch.zeros((40, *SPEC.inputs.row_shape), dtype=torch.uint8), torch.arange(40) % 3
    assert torch.equal(found.mix(noise, noise, classes, classes, found.draw(0))[1], torch.eye(3)[classes])


def test_the_faintest_wish_is_no_number_that_is_none() -> None:
    found = augmentation(200, spec=SPEC, mixup=1e-9, cutmix=1e-9)
    _, targets = mixed(found, found.draw(0))
    assert (targets[:, 2] < 0.01).any()
    assert (targets[:, 2] > 0.3).any()
    assert ((targets[:, 2] < 0.01) | (targets[:, 2] > 0.3)).all()  # one of the two, as far as a rectangle near the edge can be
