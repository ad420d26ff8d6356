"""Augmentations of small colour images, with what a test names and nothing else."""

import torch

from pipeline.core.spec import Spec
from pipeline.core.yaml_document import Document
from pipeline.train.augment.augmentation import Augmentation
from pipeline.train.params import AugmentSettings
from pipeline.train.transform_params import TRANSFORMS, TransformSettings
from tests.imports import TOP
from tests.specs import image_spec


def colour(shape: tuple[int, int, int]) -> Spec:
    return image_spec(shape=shape, classes=("a", "b"), mean=(0.1, 0.5, 0.9), std=(0.2, 0.2, 0.2))


COLOUR = colour((6, 5, 3))
NOTHING = Document.read(TOP / "presets/digits.yaml").data["augment"] | {"crop_padding": 0, "transforms": ()}
EVERYTHING = {
    "resized_crop": 0.2,
    "flip": "random",
    "brightness": 0.4,
    "contrast": 0.4,
    "saturation": 0.4,
    "cutout": 3,
    "mixup": 0.8,
    "cutmix": 1.0,
}
"""All but `crop_padding`, which cannot be combined with `resized_crop`."""


TRANSFORMED = {
    "vertical_flip": {"probability": 0.5},
    "rotate": {"degrees": 40.0},
    "random_erasing": {"probability": 0.7, "area": 0.4},
    "trivial_augment": {},
    "rand_augment": {"num_changes": 2, "magnitude": 15},
}
"""All transforms of images, with their keys."""


def transform(name: str, **keys: float) -> TransformSettings:
    found: TransformSettings = TRANSFORMS.settings(name).model_validate({"name": name, **keys})
    return found


SOME = (transform("trivial_augment"), transform("rotate", degrees=40.0))
"""Transforms for images of any number of channels."""


def settings(**wishes: object) -> AugmentSettings:
    return AugmentSettings.model_validate(NOTHING | wishes)


def augmentation(num_samples: int, *, spec: Spec = COLOUR, seed: int = 1, **wishes: object) -> Augmentation:
    return Augmentation(settings(**wishes), spec, num_samples, seed=seed, device=torch.device("cpu"))


def images(count: int, shape: tuple[int, int, int] = COLOUR.inputs.row_shape) -> torch.Tensor:
    """Noise."""
    return torch.randint(0, 256, (count, *shape), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def gathered(by: Augmentation, source: torch.Tensor) -> torch.Tensor:
    """Every image once, as the first epoch has it."""
    return by.gather(by.packed(source), torch.arange(len(source)), by.draw(0))
