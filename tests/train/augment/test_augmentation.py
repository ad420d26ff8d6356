"""Crop, flip and cutout against a plain reference, pixel by pixel; the draws of all augmentations."""

import pytest
import torch

from tests.specs import image_spec
from tests.train.augment.augmenting import COLOUR, EVERYTHING, NOTHING, augmentation, gathered, images, transform


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
