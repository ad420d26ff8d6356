"""Augmentation by crop, flip and cutout: five integers a sample and epoch, read by one strided gather."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from pipeline.params.train import AugmentSettings
from pipeline.seeding import derive
from pipeline.spec import Spec

BYTE = 255
TOP, LEFT, FLIP, CUT_Y, CUT_X = range(5)


class Augmentation:
    """Images stay bytes (n, height, width, channels); draws are (5, n) integers, a function of seed, epoch and sample."""

    def __init__(self, settings: AugmentSettings, spec: Spec, num_samples: int, *, seed: int, device: torch.device) -> None:
        self.settings, self.spec, self.num_samples, self.seed, self.device = settings, spec, num_samples, seed, device
        self.mean_colour = torch.tensor([round(mean * BYTE) for mean in spec.mean], dtype=torch.uint8, device=device)

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

    def padded(self, images: Tensor) -> Tensor:
        """With a black border of `crop` pixels; the images themselves where there is none."""
        border = self.settings.crop
        return pad(images, (0, 0, border, border, border, border)) if border else images

    def gather(self, padded: Tensor, rows: Tensor, draws: Tensor) -> Tensor:
        """Images `rows` (n,) out of the padded ones, cropped, flipped and cut as `draws` (n, 5) say."""
        height, width, channels = self.spec.shape
        if self.settings.crop:
            steps = padded.stride()
            offsets = 2 * self.settings.crop + 1
            # a view in which every crop is one strided read of `height` rows of `width * channels` bytes
            windows = padded.as_strided(
                (len(padded), offsets, offsets, height, width * channels), (steps[0], steps[1], steps[2], steps[1], 1)
            )
            images = windows[rows, draws[TOP], draws[LEFT]].view(-1, height, width, channels)
        else:
            images = padded[rows]
        if self.settings.flip != "none":
            images = torch.where(draws[FLIP].bool().view(-1, 1, 1, 1), images.flip(2), images)
        return self.cut(images, draws) if self.settings.cutout else images

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
