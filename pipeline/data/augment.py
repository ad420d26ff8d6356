"""Augmentation by crop, flip and cutout: five integers a sample and epoch, read by one strided gather of whole pixels."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from pipeline.params.augment import AugmentSettings
from pipeline.seeding import derive
from pipeline.spec import Spec

BYTE = 255
TOP, LEFT, FLIP, CUT_Y, CUT_X = range(5)
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers that hold the channels of a pixel: one to be moved where there would be several."""


class Augmentation:
    """Draws are (5, n) integers, a function of seed, epoch and sample."""

    def __init__(self, settings: AugmentSettings, spec: Spec, num_samples: int, *, seed: int, device: torch.device) -> None:
        self.settings, self.spec, self.num_samples, self.seed = settings, spec, num_samples, seed
        self.word_bytes = next((size for size in WORDS if size >= spec.channels), max(WORDS))
        self.pixel_bytes = -(-spec.channels // self.word_bytes) * self.word_bytes
        colour = torch.tensor([round(mean * BYTE) for mean in spec.mean], dtype=torch.uint8)
        self.mean_colour = pad(colour, (0, self.pixel_bytes - spec.channels)).view(WORDS[self.word_bytes]).to(device)

    @property
    def active(self) -> bool:
        return bool(self.settings.crop or self.settings.flip != "none" or self.settings.cutout)

    def draw(self, epoch: int) -> Tensor:
        """(5, all samples) at once, on the CPU, where the bits are the same for every device."""
        generator = torch.Generator().manual_seed(derive(self.seed, "augment", epoch))
        limits = (2 * self.settings.crop + 1, 2 * self.settings.crop + 1, 2, self.spec.height, self.spec.width)
        draws = torch.stack([torch.randint(limit, (self.num_samples,), generator=generator) for limit in limits])
        if self.settings.flip == "alternating":
            first = torch.Generator().manual_seed(derive(self.seed, "mirror"))
            draws[FLIP] = (torch.randint(2, (self.num_samples,), generator=first) + epoch) % 2
        return draws

    def packed_bytes(self, num_samples: int) -> int:
        """What `num_samples` take when they are packed."""
        border = 2 * self.settings.crop
        return num_samples * (self.spec.height + border) * (self.spec.width + border) * self.pixel_bytes

    def packed(self, images: Tensor) -> Tensor:
        """Images (n, height, width, channels) uint8 with a black border of `crop` pixels, as (n, height, width, words)."""
        border = self.settings.crop
        padded = pad(images, (0, self.pixel_bytes - self.spec.channels, border, border, border, border))
        return padded.contiguous().view(WORDS[self.word_bytes])

    def gather(self, packed: Tensor, rows: Tensor, draws: Tensor) -> Tensor:
        """Images (n, height, width, channels) uint8 at `rows` (n,) of the packed ones, cropped, flipped and cut as `draws` (5, n) say."""
        height, width, _ = self.spec.shape
        words = packed.shape[-1]
        if self.settings.crop:
            steps = packed.stride()
            offsets = 2 * self.settings.crop + 1
            # a view in which every crop is one strided read of `height` rows of `width` pixels
            windows = packed.as_strided(
                (len(packed), offsets, offsets, height, width * words), (steps[0], steps[1], steps[2], steps[1], 1), packed.storage_offset()
            )
            images = windows[rows, draws[TOP], draws[LEFT]].view(-1, height, width, words)
        else:
            images = packed[rows]
        if self.settings.flip != "none":
            images = torch.where(draws[FLIP].bool().view(-1, 1, 1, 1), images.flip(2), images)
        if self.settings.cutout:
            images = self.cut(images, draws)
        return images.view(torch.uint8)[..., : self.spec.channels]

    def cut(self, images: Tensor, draws: Tensor) -> Tensor:
        """A square of the mean colour, centred where drawn; parts of it may lie outside."""
        height, width, _ = self.spec.shape
        hidden = (
            inside(draws[CUT_Y], height, self.settings.cutout)[:, :, None] & inside(draws[CUT_X], width, self.settings.cutout)[:, None, :]
        )
        return torch.where(hidden[..., None], self.mean_colour, images)


def inside(centres: Tensor, extent: int, side: int) -> Tensor:
    """(n, extent): which of the pixels lie within `side` around each centre (n,)."""
    distances = torch.arange(extent, device=centres.device)[None, :] - centres[:, None] + side // 2
    return (distances >= 0) & (distances < side)
