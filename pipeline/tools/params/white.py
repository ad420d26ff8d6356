"""Finds the value that means white in image files of more than 8 bits per pixel, from the largest values of some of them."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from pipeline.core.refusal import Refusal, counted
from pipeline.core.untrusted import shown
from pipeline.prepare.reading.images import white_point
from pipeline.tools.params.columns import Question

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
    remedy = f"if all of them have one scale, add source.white={white}, the value that means white; else store all images on one scale"
    if shallow:
        raise Question(
            root,
            f"of {counted(len(brightest) + len(shallow), 'image')}, {len(shallow)} have 8 bits, such as {shown(shallow[0])}, and "
            f"{len(brightest)} have more, with values up to {highest:.10g}, such as {shown(name)}: if {white} means white in these, add source.white={white}; else "
            "store all images with 8 bits",
        )
    if darker := num_darker([value for _, value in ordered]):
        (dark_name, dark), number = ordered[darker - 1], len(ordered) - darker
        raise Question(
            root,
            f"{counted(darker, 'image')} have values up to {dark:.10g}, such as {shown(dark_name)}, and {number} up to {highest:.10g}, such as "
            f"{shown(name)}: {remedy}",
        )
    return white


def num_darker(ordered: Sequence[float]) -> int:
    """Return how many of the largest values `ordered`, in ascending order, seem to have a smaller scale than the others, or 0 if none do."""
    fewest = max(FEWEST, LEAST_SHARE * len(ordered))
    steps = [(high / low, number) for number, (low, high) in enumerate(pairwise(ordered), 1) if low > 0 and number >= fewest]
    step, number = max(steps, default=(0.0, 0))
    return number if step >= FACTOR and white_point(ordered[number - 1]) != white_point(ordered[-1]) else 0


def described_white(white: int | None, brightest: Mapping[str, float]) -> list[str]:
    """Return a line with the reason for `white`, if it was measured or given for some files."""
    if white is None or not brightest:
        return []
    return [f"pixels of more than 8 bits have values up to {max(brightest.values()):.10g}, so {white} means white (source.white)"]
