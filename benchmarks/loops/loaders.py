"""The data paths of common tutorials: PIL transforms per sample, or tensors with one crop and flip per batch. Texts are padded rows of tokens."""

from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision.transforms import v2

from benchmarks.job import CROP, SEED, SIDE, TEXT_MODELS, Job
from pipeline.core.prepared import Prepared

MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
Samples = tuple[Tensor, int]


class PILDataset(Dataset[Samples]):
    """PIL images with a transform, like torchvision's CIFAR10 dataset."""

    def __init__(self, prepared: Prepared) -> None:
        self.inputs, self.targets = prepared.train.inputs, prepared.train.targets.tolist()
        self.transform = v2.Compose(
            [
                v2.RandomCrop(SIDE, padding=CROP),
                v2.RandomHorizontalFlip(),
                v2.ToImage(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> Samples:
        return self.transform(Image.fromarray(self.inputs[index])), self.targets[index]


def tokens(prepared: Prepared) -> TensorDataset:
    """Return rows of tokens and their classes or, for a language model, the tokens that follow."""
    inputs = torch.from_numpy(prepared.train.inputs)
    if not prepared.train.windows:
        return TensorDataset(inputs, torch.from_numpy(prepared.train.targets))
    return TensorDataset(inputs, inputs.flatten().roll(-1).view(inputs.shape).long())


def samples(job: Job, prepared: Prepared, *, workers: int) -> DataLoader[Any]:
    """Return batches of samples that are fetched, and for images augmented, one at a time."""
    torch.manual_seed(SEED)
    return DataLoader(
        tokens(prepared) if job.model in TEXT_MODELS else PILDataset(prepared),
        batch_size=job.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=torch.cuda.is_available(),
    )


def tensors(job: Job, prepared: Prepared) -> DataLoader[tuple[Tensor, ...]]:
    """Return batches of tokens, or of float images that are normalised once in advance; `augmented` then draws one crop and flip per batch."""
    torch.manual_seed(SEED)
    return DataLoader(
        tokens(prepared) if job.model in TEXT_MODELS else normalised(prepared),
        batch_size=job.batch_size,
        shuffle=True,
        drop_last=True,
        pin_memory=torch.cuda.is_available(),
    )


def normalised(prepared: Prepared) -> TensorDataset:
    images = torch.from_numpy(prepared.train.inputs).permute(0, 3, 1, 2).float().div(255).sub(0.5).div(0.25)
    return TensorDataset(images, torch.from_numpy(prepared.train.targets))


augmented = v2.Compose([v2.RandomCrop(SIDE, padding=CROP), v2.RandomHorizontalFlip()])
