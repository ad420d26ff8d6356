"""Crop, flip, cutout, colours and mixing against a plain reference or torchvision; the draws of all augmentations."""

import pytest
import torch
from torchvision.transforms.v2 import functional

from pipeline.core.refusal import Refusal
from pipeline.train.augment.augmentation import Augmentation
from tests.specs import image_spec
from tests.train.augment.augmenting import COLOUR, EVERYTHING, NOTHING, augmentation, gathered, images, settings, transform


def slowly(image: torch.Tensor, draw: list[int], wishes: dict[str, float | str]) -> torch.Tensor:
    """One image, one pixel at a time, from draws in the order of the parameters."""
    height, width, _ = COLOUR.inputs.row_shape
    colour = torch.tensor([round(mean * 255) for mean in COLOUR.inputs.mean], dtype=torch.uint8)
    crop, cutout, left_over = int(wishes["crop_padding"]), int(wishes["cutout"]), iter(draw)
    down, right = (next(left_over) - crop, next(left_over) - crop) if crop else (0, 0)
    mirrored = wishes["flip"] != "none" and next(left_over)
    top, left = (next(left_over) - cutout // 2, next(left_over) - cutout // 2) if cutout else (0, 0)
    result = torch.zeros_like(image)
    for y in range(height):
        for x in range(width):
            source_y, source_x = y + down, (width - 1 - x if mirrored else x) + right
            if 0 <= source_y < height and 0 <= source_x < width:
                result[y, x] = image[source_y, source_x]
            if top <= y < top + cutout and left <= x < left + cutout:
                result[y, x] = colour
    return result


@pytest.mark.parametrize(("crop", "flip", "cutout"), [(0, "none", 3), (2, "random", 2), (1, "alternating", 4)])
def test_every_pixel_is_where_the_draws_say(crop: int, flip: str, cutout: int) -> None:
    wishes = {"crop_padding": crop, "flip": flip, "cutout": cutout}
    found, source = augmentation(20, seed=3, **wishes), images(20)
    rows = torch.tensor([4, 0, 19, 4, 7])
    draws = found.draw(1)[:, rows]
    expected = [slowly(source[row], draw, wishes) for row, draw in zip(rows.tolist(), draws.T.tolist(), strict=True)]
    assert torch.equal(found.gather(found.packed(source), rows, draws), torch.stack(expected))


def test_a_part_of_the_packed_images_is_gathered_from_its_own_beginning() -> None:
    found = augmentation(9, crop_padding=2, flip="random")
    packed, rows = found.packed(images(9)), torch.arange(6)
    draws = found.draw(0)[:, rows]
    assert torch.equal(found.gather(packed[3:], rows, draws), found.gather(packed, rows + 3, draws))


@pytest.mark.parametrize(
    ("channels", "window"), [(2, {"crop_padding": 1}), (9, {"crop_padding": 1}), (5, {"resized_crop": 0.3}), (9, {"resized_crop": 0.3})]
)
def test_pixels_of_any_number_of_channels_are_moved_whole(channels: int, window: dict[str, float]) -> None:
    spec = image_spec(shape=(4, 3, channels), classes=("a", "b"), mean=(0.5,) * channels, std=(0.2,) * channels)
    source = images(6, spec.inputs.row_shape)
    together = augmentation(6, spec=spec, flip="random", cutout=2, **window)
    grey = augmentation(6, spec=image_spec(shape=(4, 3, 1), classes=("a", "b"), mean=(0.5,), std=(0.2,)), flip="random", cutout=2, **window)
    found = gathered(together, source)
    for channel in range(channels):
        assert torch.equal(found[..., channel : channel + 1], gathered(grey, source[..., channel : channel + 1]))
    assert together.packed(source).nbytes == together.packed_bytes(6)


@pytest.mark.parametrize("window", [{"crop_padding": 2, "resized_crop": 0.0}, {}], ids=["crop", "resized"])
def test_draws_are_a_function_of_seed_epoch_and_sample(window: dict[str, float]) -> None:
    tables = {(seed, epoch): augmentation(200, seed=seed, **EVERYTHING | window).draw(epoch) for seed in (1, 2) for epoch in (0, 1)}
    again = augmentation(200, seed=1, **EVERYTHING | window).draw(0)
    assert torch.equal(tables[1, 0], again)
    for key, other in tables.items():
        assert key == (1, 0) or all(not torch.equal(row, same) for row, same in zip(again, other, strict=True))


def test_what_is_switched_on_changes_no_draws_of_the_rest() -> None:
    transforms = (transform("rotate", degrees=5.0), transform("vertical_flip", probability=0.5))
    wishes = {"crop_padding": 2, "flip": "random", "contrast": 0.5, "cutout": 2, "transforms": transforms, "mixup": 1.0}
    alone = [augmentation(50, **{name: wish}).draw(3) for name, wish in wishes.items()]
    assert torch.equal(augmentation(50, **wishes).draw(3), torch.cat(alone))


def test_draws_cover_their_whole_range() -> None:
    table = augmentation(500, crop_padding=2, flip="random", cutout=2).draw(0)
    assert table.amin(1).tolist() == [0, 0, 0, 0, 0]
    assert table.amax(1).tolist() == [4, 4, 1, COLOUR.inputs.height - 1, COLOUR.inputs.width - 1]


def test_alternating_flips_turn_every_sample_in_each_epoch() -> None:
    found = augmentation(200, flip="alternating")
    flips = [found.draw(epoch)[0] for epoch in range(3)]
    assert torch.equal(flips[1], 1 - flips[0])
    assert torch.equal(flips[2], flips[0])
    assert 80 < int(flips[0].sum()) < 120


def test_whatever_is_wished_for_is_active_and_nothing_is_not() -> None:
    assert not augmentation(3).active
    each = EVERYTHING | {"crop_padding": 1, "transforms": (transform("rotate", degrees=5.0),)}
    assert all(augmentation(3, **{name: each[name]}).active for name in NOTHING)


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


LARGE_SHAPE = (23, 17, 3)
LARGE = image_spec(shape=LARGE_SHAPE, classes=("a", "b"), mean=(0.5,) * 3, std=(0.2,) * 3)


def test_a_window_is_resized_as_torchvision_does() -> None:
    found, source = augmentation(60, spec=LARGE, resized_crop=0.05), images(60, LARGE_SHAPE)
    for image, before, (top, left, height, width) in zip(gathered(found, source), source, found.draw(0).T.tolist(), strict=True):
        expected = functional.resized_crop(
            before.permute(2, 0, 1).float(), top, left, height, width, list(LARGE_SHAPE[:2]), antialias=False
        )
        assert (image.permute(2, 0, 1) - expected).abs().max() <= 1.5, (top, left, height, width)  # 256ths of a pixel, and rounding


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


THREE_CLASSES = image_spec(shape=(9, 7, 3), classes=("a", "b", "c"), mean=(0.5,) * 3, std=(0.2,) * 3)
COUNT = 2000


def mixed(found: Augmentation, draws: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Black images of the class 0, each with a white one of the class 2."""
    black = torch.zeros((draws.shape[1], *THREE_CLASSES.inputs.row_shape), dtype=torch.uint8)
    classes = torch.zeros(draws.shape[1], dtype=torch.int64)
    return found.mix(black, black + 255, classes, classes + 2, draws)


@pytest.mark.parametrize("wishes", [{"mixup": 0.4}, {"cutmix": 1.0}, {"mixup": 0.8, "cutmix": 1.0}], ids="+".join)
def test_the_target_has_of_each_class_what_the_image_shows(wishes: dict[str, float]) -> None:
    found = augmentation(COUNT, spec=THREE_CLASSES, **wishes)
    images, targets = mixed(found, found.draw(0))
    assert (images.dtype, targets.dtype, tuple(targets.shape)) == (torch.uint8, torch.float32, (COUNT, 3))
    shown = images.double().mean((1, 2, 3)) / 255
    assert (targets[:, 2] - shown).abs().max() < 0.5 / 255 + 1e-6
    assert targets.sum(1).tolist() == pytest.approx([1.0] * COUNT)
    assert (targets[:, 1] == 0).all()


def test_mixup_is_the_same_in_all_pixels_and_its_shares_are_of_beta() -> None:
    found = augmentation(COUNT, spec=THREE_CLASSES, mixup=0.4)
    images, targets = mixed(found, found.draw(0))
    assert (images == images[:, :1, :1, :1]).all()
    share = targets[:, 2]
    assert share.mean() == pytest.approx(0.5, abs=0.03)
    assert share.var() == pytest.approx(1 / (4 * (2 * 0.4 + 1)), abs=0.02)


def test_cutmix_replaces_one_rectangle_anywhere() -> None:
    found = augmentation(COUNT, spec=THREE_CLASSES, cutmix=1.0)
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
    draws = augmentation(COUNT, spec=THREE_CLASSES, mixup=1.0, cutmix=1.0).draw(0)
    laid_over, cut = draws[0] > 0, (draws[3:] > 0).all(0)
    assert not (laid_over & cut).any()
    assert 0.45 < laid_over.double().mean() < 0.55
    assert 0.4 < cut.double().mean() < 0.55  # some pieces are too small for a pixel
    one, other = augmentation(COUNT, spec=THREE_CLASSES, mixup=1.0).draw(0), augmentation(COUNT, spec=THREE_CLASSES, cutmix=1.0).draw(0)
    assert torch.equal(draws[0, laid_over], one[0, laid_over])
    assert torch.equal(draws[1:, cut], other[1:, cut])


def test_the_faintest_wish_is_no_number_that_is_none() -> None:
    found = augmentation(200, spec=THREE_CLASSES, mixup=1e-9, cutmix=1e-9)
    _, targets = mixed(found, found.draw(0))
    assert (targets[:, 2] < 0.01).any()
    assert (targets[:, 2] > 0.3).any()
    assert ((targets[:, 2] < 0.01) | (targets[:, 2] > 0.3)).all()  # one of the two, as far as a rectangle near the edge can be
