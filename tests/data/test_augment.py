"""Augmentation against a plain reference, pixel by pixel."""

import pytest
import torch

from pipeline.data.augment import CUT_X, CUT_Y, FLIP, LEFT, TOP, Augmentation
from pipeline.params.augment import AugmentSettings
from pipeline.spec import Spec

CPU = torch.device("cpu")
COLOUR = Spec(shape=(6, 5, 3), classes=("a", "b"), mean=(0.1, 0.5, 0.9), std=(0.2, 0.2, 0.2))


def images(count: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, *COLOUR.shape), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def slowly(image: torch.Tensor, draw: list[int], settings: AugmentSettings) -> torch.Tensor:
    """One image, one pixel at a time."""
    height, width, _ = COLOUR.shape
    colour = torch.tensor([round(mean * 255) for mean in COLOUR.mean], dtype=torch.uint8)
    result = torch.zeros_like(image)
    for y in range(height):
        for x in range(width):
            column = width - 1 - x if settings.flip != "none" and draw[FLIP] else x
            source_y, source_x = (y, column)
            if settings.crop:
                source_y, source_x = y + draw[TOP] - settings.crop, column + draw[LEFT] - settings.crop
            if 0 <= source_y < height and 0 <= source_x < width:
                result[y, x] = image[source_y, source_x]
            top, left = draw[CUT_Y] - settings.cutout // 2, draw[CUT_X] - settings.cutout // 2
            if top <= y < top + settings.cutout and left <= x < left + settings.cutout:
                result[y, x] = colour
    return result


@pytest.mark.parametrize(
    ("crop", "flip", "cutout"), [(0, "none", 0), (2, "none", 0), (0, "random", 0), (0, "none", 3), (2, "random", 2), (1, "alternating", 4)]
)
def test_every_pixel_is_where_the_draws_say(crop: int, flip: str, cutout: int) -> None:
    settings = AugmentSettings(crop=crop, flip=flip, cutout=cutout)
    augmentation, source = Augmentation(settings, COLOUR, 20, seed=3, device=CPU), images(20)
    rows = torch.tensor([4, 0, 19, 4, 7])
    draws = augmentation.draw(1)[:, rows]
    found = augmentation.gather(augmentation.packed(source), rows, draws)
    expected = torch.stack([slowly(source[row], draw, settings) for row, draw in zip(rows.tolist(), draws.T.tolist(), strict=True)])
    assert torch.equal(found, expected)


def test_a_part_of_the_packed_images_is_gathered_from_its_own_beginning() -> None:
    augmentation = Augmentation(AugmentSettings(crop=2, flip="random", cutout=0), COLOUR, 9, seed=1, device=CPU)
    packed, rows = augmentation.packed(images(9)), torch.arange(6)
    draws = augmentation.draw(0)[:, rows]
    assert torch.equal(augmentation.gather(packed[3:], rows, draws), augmentation.gather(packed, rows + 3, draws))


@pytest.mark.parametrize("channels", [1, 2, 4, 5, 9])
def test_pixels_of_any_number_of_channels_are_moved_whole(channels: int) -> None:
    spec = Spec(shape=(4, 3, channels), classes=("a", "b"), mean=(0.5,) * channels, std=(0.2,) * channels)
    settings = AugmentSettings(crop=1, flip="random", cutout=2)
    source = torch.randint(0, 256, (6, *spec.shape), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    together = Augmentation(settings, spec, 6, seed=3, device=CPU)
    draws, rows = together.draw(0), torch.arange(6)
    found = together.gather(together.packed(source), rows, draws)
    grey = Augmentation(settings, Spec(shape=(4, 3, 1), classes=("a", "b"), mean=(0.5,), std=(0.2,)), 6, seed=3, device=CPU)
    for channel in range(channels):
        alone = grey.gather(grey.packed(source[..., channel : channel + 1]), rows, draws)
        assert torch.equal(found[..., channel : channel + 1], alone)
    assert together.packed(source).nbytes == together.packed_bytes(6)


def test_draws_are_a_function_of_seed_epoch_and_sample() -> None:
    settings = AugmentSettings(crop=2, flip="random", cutout=2)
    tables = {(seed, epoch): Augmentation(settings, COLOUR, 200, seed=seed, device=CPU).draw(epoch) for seed in (1, 2) for epoch in (0, 1)}
    assert torch.equal(tables[1, 0], Augmentation(settings, COLOUR, 200, seed=1, device=CPU).draw(0))
    assert all(not torch.equal(tables[1, 0], other) for key, other in tables.items() if key != (1, 0))


def test_draws_cover_their_whole_range() -> None:
    table = Augmentation(AugmentSettings(crop=2, flip="random", cutout=2), COLOUR, 500, seed=1, device=CPU).draw(0)
    assert table.amin(1).tolist() == [0, 0, 0, 0, 0]
    assert table.amax(1).tolist() == [4, 4, 1, COLOUR.height - 1, COLOUR.width - 1]


def test_alternating_flips_turn_every_sample_in_each_epoch() -> None:
    augmentation = Augmentation(AugmentSettings(crop=0, flip="alternating", cutout=0), COLOUR, 200, seed=1, device=CPU)
    flips = [augmentation.draw(epoch)[FLIP] for epoch in range(3)]
    assert torch.equal(flips[1], 1 - flips[0])
    assert torch.equal(flips[2], flips[0])
    assert 80 < int(flips[0].sum()) < 120
