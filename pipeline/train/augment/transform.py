"""Applies the transforms that parameters name, gives them random numbers of each sample, and refuses those that would break a promise."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from pipeline.core.refusal import Refusal
from pipeline.inference.cuda_graphs import changed_generators, host_randomness, watched
from pipeline.inputs.image.description import ImageInputs
from pipeline.inputs.text.description import TextInputs
from pipeline.train.augment.pixels import BYTE, Draws, RandomSource, rounded
from pipeline.train.transform_params import TRANSFORMS, TextTransformSettings, TransformSettings, Uniform

Change = Callable[[Tensor, Uniform], Tensor]
SEEDS = 2**63
BITS = 24
"""A random number is a multiple of 2^-24: float32 has each of them exactly."""
STEP, MIXING = -0x61C8864680B583EB, ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15))
"""The constants of SplitMix64 (Steele, Lea and Flood, 2014), as signed integers."""
TRIED, TRIED_VALUES, FINITE_VALUES = 64, 2**21, 2**18
"""The number of samples with which a transform is tried before a training, and of their values; four samples at least. Of small samples there are
more, up to FINITE_VALUES, in which NaN and infinity are looked for."""
HOST = (
    "needs values on the host: use no item(), no boolean indexing and no NumPy, and create tensors with `device=` of those that are given"
)


class RandomNumbers:
    """Returns random numbers for n samples, from an integer `seeds` (n,) for each: see `Uniform`.

    They are SplitMix64 of this integer. Integer arithmetic is exact, so the numbers are the same on every device.
    """

    def __init__(self, seeds: Tensor) -> None:
        self.seeds, self.num_drawn = seeds, 0

    def __call__(self, *shape: int) -> Tensor:
        count = math.prod(shape)
        places = torch.arange(self.num_drawn + 1, self.num_drawn + count + 1, device=self.seeds.device)
        self.num_drawn += count
        state = self.seeds[:, None] + places * STEP
        for shift, factor in MIXING:
            state = (state ^ shifted(state, shift)) * factor
        found: Tensor = shifted(state ^ shifted(state, 31), 64 - BITS).float() / 2**BITS
        return found.view(-1, *shape)


def shifted(state: Tensor, shift: int) -> Tensor:
    """Shift int64 to the right as if it had no sign."""
    return (state >> shift) & ((1 << 64 - shift) - 1)


class Transform:
    """Applies the transform of `settings`. `key` is its parameter. `number` counts the transforms of the same name before it: each draws its own."""

    num_draws = 1

    def __init__(self, settings: TransformSettings, number: int, key: str) -> None:
        self.settings, self.number, self.key = settings, number, key

    def draw(self, generator_for: RandomSource, epoch: int, num_samples: int) -> Draws:
        return generator_for("transform", self.settings.name, self.number, epoch).integers(SEEDS, size=(self.num_draws, num_samples))

    def of_images(self, images: Tensor, draws: Tensor) -> Tensor:
        """Return the changed images (n, channels, height, width), from 0 to 1."""
        return self.settings.changed(images, RandomNumbers(draws[0])).clamp(0, 1)

    def of_texts(self, tokens: Tensor, draws: Tensor, text: TextInputs) -> Tensor:
        """Return the changed tokens (n, length)."""
        assert isinstance(self.settings, TextTransformSettings)
        found = self.settings.changed_tokens(tokens.clone(), RandomNumbers(draws[0]), text)
        special = (text.tokenizer.pad, *text.tokenizer.before, *text.tokenizer.after)
        for number in dict.fromkeys(special):
            found = torch.where(tokens == number, tokens, found)
        return found

    def refuse_unfit(self, samples: Tensor, change: Change, other: Change) -> None:
        """Raise Refusal if `change` fails on `samples`, gives another shape, type or NaN, draws random numbers of its own, keeps something between calls, needs the
        host, or gives a sample other values among others than alone. `other` is the same change by another object, whose first samples are others.
        """
        file = TRANSFORMS.path(self.settings.name)
        generator = torch.Generator().manual_seed(0)
        seeds = torch.randint(SEEDS - 1, (len(samples),), generator=generator).to(samples.device)

        def changed(part: slice, device: torch.device | str = samples.device, change: Change = change) -> Tensor:
            try:
                return change(samples[part].clone().to(device), RandomNumbers(seeds[part].to(device)))
            except Refusal:
                raise
            except Exception as error:  # whatever the module of a user raises
                place, reason = TRANSFORMS.failure(self.settings.name, error)
                if device == "meta":
                    raise self.refusal(f"{place}: {HOST} ({reason})") from None
                raise self.refusal(f"{place}: fails: {type(error).__name__}: {reason}") from error

        before = host_randomness()
        whole = changed(slice(TRIED))
        if not isinstance(whole, Tensor) or (whole.shape, whole.dtype, whole.device) != (
            samples[:TRIED].shape,
            samples.dtype,
            samples.device,
        ):
            found = f"{whole.dtype} of the shape {[*whole.shape]} on {whole.device}" if isinstance(whole, Tensor) else type(whole).__name__
            raise self.refusal(
                f"{file}: returns {found}: return {samples.dtype} of the shape {[*samples[:TRIED].shape]} on {samples.device}, as it was given"
            )
        if not changed(slice(None)).isfinite().all():
            raise self.refusal(f"{file}: gives NaN or infinity for some samples, such as black or white images: avoid to divide by 0")
        drawn = changed_generators(before)
        changed(slice(1, 3), change=other)
        if drawn or not all(torch.equal(whole, changed(slice(TRIED), change=each)) for each in (change, other)):
            found = f"draws random numbers from {drawn[0]}" if drawn else "gives other values in a second call with the same `uniform`"
            raise self.refusal(
                f"{file}: {found}, which a resumed training would not repeat: draw from `uniform` alone, and keep nothing between calls"
            )
        if not torch.equal(whole, torch.cat([changed(slice(place, place + 1)) for place in range(len(whole))])):
            raise self.refusal(
                f"{file}: gives a sample other values in a batch than alone: let each sample depend on itself only. Also `**`, exp2 and sigmoid, and sums over "
                "several dimensions, may round differently in other batches: use exp, log and sqrt, and sum whole numbers in float64"
            )
        changed(slice(TRIED), "meta")
        if samples.is_cuda and (reason := watched(lambda: changed(slice(TRIED)))[1]):
            raise self.refusal(f"{file}: {HOST} ({reason})")

    def refuse_strange(self, tokens: Tensor, text: TextInputs) -> None:
        """Raise Refusal if a change of `tokens` (n, length) gives what is no token of `text`."""
        found = self.of_texts(tokens, torch.arange(len(tokens), device=tokens.device)[None], text)
        if (strange := found[(found != text.pad) & ((found < 0) | (found >= text.num_tokens))]).numel():
            raise self.refusal(
                f"{self.settings.name} returns {int(strange[0])}, which is no token: return numbers from 0 to {text.num_tokens - 1}"
            )

    def refusal(self, problem: str) -> Refusal:
        return Refusal(f"{self.key}: {problem}")


def transforms_of(settings: Sequence[TransformSettings]) -> list[Transform]:
    names = [each.name for each in settings]
    return [Transform(each, names[:place].count(each.name), f"augment.transforms.{place}") for place, each in enumerate(settings)]


def refuse_unfit(transforms: Sequence[Transform], inputs: ImageInputs | TextInputs, device: torch.device) -> None:
    """Try each transform with samples of noise, among them equal pixels or tokens. Raises Refusal if one would break a promise."""
    generator = torch.Generator().manual_seed(0)
    size = math.prod(inputs.row_shape)
    count = max(min(TRIED, max(4, TRIED_VALUES // size)), FINITE_VALUES // size)
    for transform in transforms:
        settings = transform.settings
        if isinstance(inputs, TextInputs):
            assert isinstance(settings, TextTransformSettings)
            settings.refuse_misfit(inputs, transform.key)
            tokens = torch.randint(inputs.num_tokens, (count, *inputs.row_shape), generator=generator, dtype=torch.int32)
            tokens[0], tokens[1, 1:] = 0, inputs.tokenizer.pad
            objects = settings, settings.model_copy()
            transform.refuse_unfit(tokens.to(device), *(partial(each.changed_tokens, text=inputs) for each in objects))
            transform.refuse_strange(tokens.to(device), inputs)
        else:
            height, width, channels = inputs.row_shape
            images = torch.rand(count, channels, height, width, generator=generator)
            images[::2] = rounded(images[::2] * BYTE) / BYTE  # as stored images; the others are as after another transform
            images[0], images[1], images[2] = 0, 1, 0.5
            transform.refuse_unfit(images.to(device), settings.changed, settings.model_copy().changed)


def to_floats(images: Tensor) -> Tensor:
    """Convert images (n, height, width, channels) uint8 to (n, channels, height, width) float32 from 0 to 1."""
    return images.permute(0, 3, 1, 2).contiguous().float() / BYTE


def to_bytes(images: Tensor) -> Tensor:
    """Convert images back that `to_floats` has returned."""
    return rounded(images * BYTE).permute(0, 2, 3, 1).contiguous()
