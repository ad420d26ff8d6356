"""Transforms: the built-in ones beside torchvision's, the random numbers, and what is refused before a training."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import InterpolationMode, functional

from pipeline.core.refusal import Refusal
from pipeline.inputs.image.description import ImageInputs
from pipeline.train.augment import imaging, policy
from pipeline.train.augment.augmentation import TextAugmentation, refuse_misfit
from pipeline.train.augment.transform import RandomNumbers, refuse_unfit, transforms_of
from pipeline.train.params import TransformsSettings
from pipeline.train.transform_params import TRANSFORMS, TransformSettings, Uniform
from tests import project
from tests.imports import TOP
from tests.specs import text_spec
from tests.train.augment.augmenting import COLOUR, TRANSFORMED, settings, transform

CPU = torch.device("cpu")
NUM, SHAPE = 40, (3, 13, 10)
BILINEAR = InterpolationMode.BILINEAR
SEEDS = torch.randint(2**62, (NUM,), generator=torch.Generator().manual_seed(1))


def pictures() -> Tensor:
    """Noise in whole bytes, of which some images are of one colour."""
    images = torch.randint(0, 256, (NUM, *SHAPE), generator=torch.Generator().manual_seed(2)).float()
    images[0], images[1] = 90, images[1].clamp(60, 180)
    return images / 255


def drawn(count: int) -> list[Tensor]:
    return list(RandomNumbers(SEEDS)(count).unbind(1))


def placed(numbers: list[Tensor]) -> list[tuple[float, ...]]:
    """The numbers of each picture."""
    return list(zip(*(each.tolist() for each in numbers), strict=True))


def erased(image: Tensor, happens: float, area: float, ratio: float, top: float, left: float, *, keys: dict[str, float]) -> Tensor:
    side, stretch = math.sqrt(SHAPE[1] * SHAPE[2] * (0.02 + (keys["area"] - 0.02) * area)), 3.3 ** (ratio - 0.5)
    height, width = (min(most, max(1, round(length))) for most, length in zip(SHAPE[1:], (side * stretch, side / stretch), strict=True))
    place = int(top * (SHAPE[1] + 1 - height)), int(left * (SHAPE[2] + 1 - width))
    return functional.erase(image, *place, height, width, torch.zeros(1)) if happens < keys["probability"] else image


THEIRS: dict[str, tuple[int, Callable[..., Tensor]]] = {
    "vertical_flip": (1, lambda image, happens, keys: image.flip(1) if happens < keys["probability"] else image),
    "rotate": (1, lambda image, turn, keys: functional.rotate(image, (2 * turn - 1) * keys["degrees"], interpolation=BILINEAR)),
    "random_erasing": (5, erased),
}
"""How many random numbers a transform takes, and what torchvision makes of an image with them."""


@pytest.mark.parametrize("name", THEIRS)
def test_a_transform_changes_images_as_torchvision_does(name: str) -> None:
    images, keys, (count, theirs) = pictures(), TRANSFORMED[name], THEIRS[name]
    expected = [theirs(image, *numbers, keys=keys) for image, numbers in zip(images, placed(drawn(count)), strict=True)]
    found = transform(name, **keys).changed(images, RandomNumbers(SEEDS))
    assert (found - torch.stack(expected)).abs().max() < 1e-3
    assert sum(not torch.equal(*pair) for pair in zip(found, images, strict=True)) > 0.3 * NUM


NAMES = {name: "".join(part.capitalize() for part in name.split("_")) for name in policy.CHANGES} | {"autocontrast": "AutoContrast"}


@pytest.mark.parametrize("name", policy.CHANGES)
@pytest.mark.parametrize(
    ("peer", "space"), [(v2.TrivialAugmentWide(), policy.WIDE), (v2.RandAugment(), policy.NARROW)], ids=["wide", "narrow"]
)
def test_each_change_of_a_policy_is_that_of_torchvision(name: str, peer: v2.RandAugment, space: policy.Space) -> None:
    """On bytes, of which torchvision cuts off the fraction; of `color`, twice."""
    images, number = pictures(), policy.CHANGES.index(name)
    strengths, negative = peer._AUGMENTATION_SPACE[NAMES[name]]
    magnitudes, most = strengths(31, *SHAPE[1:]), 2.01 if name == "color" else 1.01
    for level, sign in ((0, 1), (9, 1), (9, -1), (20, 1), (30, -1)):
        magnitude = 0.0 if magnitudes is None else float(magnitudes[level]) * (sign if negative else 1)
        bytes_ = (images * 255).round().to(torch.uint8)
        theirs = peer._apply_image_or_video_transform(bytes_, NAMES[name], magnitude, interpolation=BILINEAR, fill={torch.Tensor: None})
        chosen = torch.full((NUM,), (number + 0.5) / len(policy.CHANGES))
        ours = policy.changed(images, space, chosen, torch.full((NUM,), level / 30), torch.full((NUM,), 0.5 if sign > 0 else 0.4))
        assert (ours * 255 - theirs).abs().max() <= most, (level, sign)


def test_every_change_of_a_policy_is_chosen_equally_often() -> None:
    chosen = (RandomNumbers(torch.randint(2**62, (14_000,), generator=torch.Generator().manual_seed(0)))() * 14).long()
    assert (chosen.bincount() - 1000).abs().max() < 150
    images = torch.rand(1, *SHAPE).expand(400, -1, -1, -1)
    found = transform("trivial_augment").changed(images, RandomNumbers(torch.arange(400)))
    assert len(found.flatten(1).unique(dim=0)) > 150


def test_random_numbers_are_those_of_splitmix64_in_every_cut_of_a_batch() -> None:
    def reference(seed: int, place: int) -> float:
        state = (seed + place * 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        return (state ^ state >> 31 >> 0) // 2**40 / 2**24

    numbers = RandomNumbers(SEEDS)
    found = torch.cat([numbers(2, 3).flatten(1), numbers()[:, None]], dim=1)
    assert found.tolist() == [[reference(seed, place) for place in range(1, 8)] for seed in SEEDS.tolist()]
    for size in (1, 7):
        assert torch.equal(found, torch.cat([RandomNumbers(part)(7) for part in SEEDS.split(size)]))


class Own(TransformSettings):
    """Changes images by a function that a test names."""

    name: Literal["own"] = "own"

    def changed(self, images: Tensor, uniform: Uniform) -> Tensor:
        found: Tensor = self.function(images, uniform)
        return found


BROKEN = {
    "neighbours": (lambda images, _: images - images.mean(0), "gives a sample other values in a batch than alone"),
    "a generator of its own": (lambda images, _: images + torch.rand(len(images), 1, 1, 1), "draws random numbers from torch, "),
    "item": (lambda images, uniform: images * uniform().max().item() * 0 + images, r"needs values on the host"),
    "boolean indexing": (lambda images, uniform: images + 0 * images[uniform() < 2].sum(), "needs values on the host"),
    "a rare NaN": (lambda images, uniform: images / (uniform(1, *images.shape[2:]) > 1e-4), "gives NaN or infinity for some samples"),
    "another size": (
        lambda images, _: images[:, :, :-1],
        r"returns torch.float32 of the shape \[64, 3, 5, 5\] on cpu: return torch.float32",
    ),
    "nothing": (lambda *_: None, "returns NoneType"),
    "an error": (lambda images, uniform: images * uniform(2), "fails: RuntimeError: The size of tensor a"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_transform_that_breaks_a_promise_is_refused_before_a_training(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, message = BROKEN[case]
    monkeypatch.setattr(Own, "function", staticmethod(function), raising=False)
    assert isinstance(COLOUR.inputs, ImageInputs)
    with pytest.raises(Refusal, match=rf"^augment\.transforms\.1: pipeline/train/augment/transforms/own\.py: {message}"):
        refuse_unfit(transforms_of([transform("rotate", degrees=5.0), Own()]), COLOUR.inputs, CPU)


def test_a_transform_that_keeps_something_of_its_first_batch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Own, "changed", lambda self, images, _: images - self.__dict__.setdefault("mean", images.mean()))
    with pytest.raises(Refusal, match=r"gives other values in a second call .*: draw from `uniform` alone, and keep nothing between calls"):
        refuse_unfit(transforms_of([Own()]), COLOUR.inputs, CPU)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_built_in_transforms_keep_all_promises(name: str, channels: int) -> None:
    inputs = ImageInputs(height=28, width=29, channels=channels, mean=(0.5,) * channels, std=(0.2,) * channels)
    refuse_unfit(transforms_of([transform(name, **TRANSFORMED[name])]), inputs, CPU)


def test_a_transform_of_colours_is_refused_for_grey_images(own) -> None:
    code = 'from typing import ClassVar, Literal\nfrom pipeline.train.transform_params import TransformSettings\nclass Settings(TransformSettings):\n    name: Literal["colours"]\n    channels: ClassVar = (3,)\n'
    own(TRANSFORMS, "colours", code)
    chosen = settings(transforms=(transform("colours"),))
    chosen.refuse_misfit(8, 9, 3)
    with pytest.raises(Refusal, match=r"^augment\.transforms\.0: colours needs images of 3 channels, these have 1: remove it"):
        chosen.refuse_misfit(8, 9, 1)


def test_token_dropout_replaces_words_and_neither_padding_nor_special_tokens() -> None:
    spec = text_spec(classes=("a", "b"))
    tokenizer = spec.inputs.tokenizer
    chosen = TransformsSettings(transforms=(transform("token_dropout", probability=0.3),))
    refuse_misfit(chosen, spec)
    found = TextAugmentation(chosen, spec, 200, seed=1, device=CPU)
    tokens = torch.full((200, spec.inputs.length), spec.inputs.num_tokens - 1, dtype=torch.int32)
    tokens[:, 2:] = torch.where(torch.arange(200)[:, None] < 100, tokenizer.pad, tokens[:, 2:])
    rows, draws = torch.arange(200), found.draw(0)
    changed = found.gather(tokens, rows, draws)
    assert (changed[tokens == tokenizer.pad] == tokenizer.pad).all()
    dropped = changed[tokens != tokenizer.pad] == tokenizer.unknown
    assert 0.2 < dropped.float().mean() < 0.4
    assert torch.equal(changed, torch.cat([found.gather(tokens, rows[place], draws[:, place]) for place in rows.split(7)]))
    assert not torch.equal(changed, found.gather(tokens, rows, found.draw(1)))
    both = TransformsSettings(transforms=tuple(transform("token_dropout", probability=share) for share in (0.999, 1e-9)))
    found = TextAugmentation(both, spec, 200, seed=1, device=CPU)
    kept = found.gather(tokens, rows, found.draw(0))[tokens != tokenizer.pad] != tokenizer.unknown
    assert kept.float().mean() < 0.01, "each transform changes what the one before it returns"


def test_a_transform_that_returns_no_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, chosen = text_spec(classes=("a", "b")), transform("token_dropout", probability=0.3)
    monkeypatch.setattr(type(chosen), "changed_tokens", lambda self, tokens, uniform, text: tokens + text.num_tokens)  # noqa: ARG005
    with pytest.raises(Refusal, match=r"^augment\.transforms\.0: token_dropout returns \d+, which is no token: return numbers from 0 to "):
        refuse_unfit(transforms_of([chosen]), spec.inputs, CPU)


def test_the_transform_of_the_docs_is_trained_with_and_shown(own, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (TOP / "docs/extending.md").read_text(encoding="utf-8").partition("\n## A transform\n")[2]
    example, showing, *_ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    own(TRANSFORMS, "gamma", example)
    changes = {"augment.transforms": [{"name": "gamma", "strength": 0.5}, {"name": "vertical_flip", "probability": 0.5}]}
    folder = project.run(project.make(tmp_path / "project", changes=changes), "prepare", "train")
    assert (folder / "models/model.safetensors").exists()
    monkeypatch.chdir(folder)
    exec(showing, {})  # noqa: S102  # the example of our own docs
    pixels = np.asarray(Image.open("gamma.png"))
    assert (pixels[:, :8] == np.load("data/prepared/train-inputs.npy")[:8].reshape(64, 8)).all()
    assert (pixels[:, :8] != pixels[:, 8:]).any()


DOCS = (TOP / "docs/extending.md").read_text(encoding="utf-8")
MEAN = re.search(r"`(\(\(images .*?\.float\(\))`", DOCS)[1]
LINES = re.findall(r"^\| .* \| `(.*\(images.*)` \|$", DOCS, re.MULTILINE)


@pytest.mark.parametrize("line", [f"images - {MEAN}", *LINES])
def test_the_lines_of_the_docs_change_images_and_keep_the_promises(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    changed = eval(f"lambda images, uniform: {line}", {"torch": torch, **vars(imaging)})  # noqa: S307  # a line of our own docs
    monkeypatch.setattr(Own, "function", staticmethod(changed), raising=False)
    refuse_unfit(transforms_of([Own()]), COLOUR.inputs, CPU)
    assert not torch.equal(changed(pictures(), RandomNumbers(SEEDS)), pictures())
