"""Looks at image files: the size and channels to which they should be converted, and the value that means white in those of more than 8 bits."""

import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.core.refusal import Refusal, counted, listed
from pipeline.core.untrusted import reason, shown
from pipeline.prepare.inputs.image_files import ImageFileSettings
from pipeline.prepare.reading.images import is_deep, white_point
from pipeline.tools.params.questions import Question

MEASURED = 100
DECODING_S = 10.0
MOST_CROPPED = 0.3
"""The crop of a photograph of 4:3 cuts off a quarter."""
LARGE, RESIZED = 96, 224
"""Images whose shorter sides are mostly longer than LARGE pixels are resized to RESIZED, the size of pretrained models."""
FACTOR, FEWEST, LEAST_SHARE = 4, 2, 0.05
"""Files whose largest values are all FACTOR times smaller than those of the others have another scale, if they are at least FEWEST and LEAST_SHARE of all."""


def find_white(root: Path, brightest: Mapping[str, float], shallow: Sequence[str]) -> int | None:
    """Return the value of `source.white` for files with the largest values `brightest`, by name, or None if it is not needed.

    `shallow` are the names of the files with 8 bits. Raises Question if the files have several scales.
    """
    if not brightest:
        return None
    ordered = sorted(brightest.items(), key=lambda item: item[1])
    name, highest = ordered[-1]
    white = white_point(highest)
    if white is None:
        raise Refusal(f"data={root}: {shown(name)} has values up to {highest:.10g}: store the images with 8 or 16 bits")
    if shallow:
        few = f"of {counted(len(brightest) + len(shallow), 'image')}, {len(shallow)} have 8 bits, such as {shown(shallow[0])}"
        more = f"{len(brightest)} have more, with values up to {highest:.10g}, such as {shown(name)}"
        remedy = f"if {white} means white in these, add source.white={white}; else store all images with 8 bits"
        raise Question(root, f"{few}, and {more}: {remedy}")
    if darker := num_darker([value for _, value in ordered]):
        dark_name, dark = ordered[darker - 1]
        few = f"{counted(darker, 'image')} have values up to {dark:.10g}, such as {shown(dark_name)}"
        more = f"{len(ordered) - darker} up to {highest:.10g}, such as {shown(name)}"
        remedy = f"if all of them have one scale, add source.white={white}, the value that means white; else store all images on one scale"
        raise Question(root, f"{few}, and {more}: {remedy}")
    return white


def num_darker(ordered: Sequence[float]) -> int:
    """Return how many of the largest values `ordered`, in ascending order, seem to have a smaller scale than the others, or 0 if none do."""
    fewest = max(FEWEST, LEAST_SHARE * len(ordered))
    steps = [(high / low, number) for number, (low, high) in enumerate(pairwise(ordered), 1) if low > 0 and number >= fewest]
    step, number = max(steps, default=(0.0, 0))
    return number if step >= FACTOR and white_point(ordered[number - 1]) != white_point(ordered[-1]) else 0


def image_facts(settings: ImageFileSettings, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the size and the number of channels to which the images should be converted, and the value that means white, from some of them.

    Those in `given` stay. Also returns a line about what the centre crop cuts off, if it is more than MOST_CROPPED of most images, and one
    about white. Raises Refusal if no image can be read, and Question like `find_white`.
    """
    from PIL import Image, ImageMode

    tree, layout = settings.files()
    names = [sample.name for sample in layout.samples][:: max(1, len(layout.samples) // MEASURED)]
    sides, modes, reasons = list[tuple[int, int]](), set[str](), list[str]()
    brightest, shallow = dict[str, float](), list[str]()
    with tree.contents(names) as members:
        for member in members:
            try:
                with Image.open(BytesIO(member.read())) as image:
                    sides.append((min(image.size), max(image.size)))
                    modes.add(ImageMode.getmode(image.mode).basemode)
                    if not is_deep(image):
                        shallow.append(member.name)
                    elif image.width * image.height <= settings.max_pixels:
                        highest = float(np.asarray(image).max())
                        brightest |= {member.name: highest} if math.isfinite(highest) else {}  # the decoder reports it
            except Exception as error:  # Pillow may raise any exception; `stored` names the damaged ones
                reasons.append(f"{shown(member.name)} ({reason(error)})")
    if not sides:
        settings.refuse_damaged(workers=1, within_s=DECODING_S)
        raise Refusal(f"{settings.place}: none of its images can be read: {listed(reasons, 1)}: convert or repair them")
    side = sorted(sides)[len(sides) // 2][0]
    shares = sorted(1 - short / long for short, long in sides)
    cropped, most = shares[len(shares) // 2], shares[-1]
    white = given["white"] if "white" in given else find_white(settings.root, brightest, shallow)
    facts = {"image_size": side if side <= LARGE else RESIZED, "channels": 1 if modes == {"L"} else 3, "white": white}
    lines = list[str]()
    if cropped > MOST_CROPPED:
        lines.append(f"images are not square: a crop to the middle cuts off {cropped:.0%} of an image (median), {most:.0%} at most")
    if white is not None and brightest:
        highest = max(brightest.values())
        lines.append(f"pixels of more than 8 bits have values up to {highest:.10g}, so {white} means white (source.white)")
    return facts | {key: given[key] for key in facts if key in given}, lines


def stored(settings: ImageFileSettings) -> list[str]:
    """Return a line about the images as they will be stored, and one about those that cannot be decoded."""
    side = settings.image_size
    lines = [f"images are stored as {side}x{side} with {settings.channels} channels (source.image_size, source.channels)"]
    try:
        settings.refuse_damaged(workers=1, within_s=DECODING_S)
    except Refusal as error:
        lines.append(f"warning: {error}")
    return lines
