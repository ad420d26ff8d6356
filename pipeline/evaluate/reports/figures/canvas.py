"""Writes figures whose bytes depend only on the data, in one style, whatever the user's matplotlibrc says."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from matplotlib import font_manager, style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font

from pipeline.core import files

DPI = 120
INK, MUTED, RULE = "#222222", "#6b6b6b", "#dddddd"
BLUE, VERMILION, GREEN = "#0072b2", "#d55e00", "#009e73"
"""Colours from the palette of Okabe and Ito (2008), distinguishable with every kind of colour blindness."""
STYLE = {
    "axes.edgecolor": MUTED,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.h_pad": 0.1,
    "figure.constrained_layout.w_pad": 0.1,
    "figure.titlesize": 12,
    "font.family": ["DejaVu Sans"],  # comes with matplotlib, so that every machine has it
    "font.size": 9.5,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "text.color": INK,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
}


@contextmanager
def figure(path: Path, width: float, height: float) -> Iterator[Figure]:
    """Yield an empty figure, and write it to `path` after the block: `with figure(path, 6, 4) as canvas:`.

    `width` and `height` are in inches. The PNG file is written atomically. It contains no program name, version or time, so that its bytes
    depend only on the figure.
    """
    with style.context(["default", STYLE]):
        canvas = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
        yield canvas
        with files.replacing(path) as draft:
            canvas.savefig(draft, format="png", dpi=DPI, metadata={"Software": None})


def bare(axes: Axes) -> None:
    """Remove grid, ticks and frame, for images and matrices."""
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def label(name: str, number: int, longest: int = 40) -> str:
    """Return the name of a class as text that can be plotted: on one line, with each `$` escaped.

    Characters that the font lacks are removed. If there are any, or if the name is empty, the text begins with `#` and `number`, the number
    of the class. If the text has more than `longest` characters, `…` replaces its middle. The backslashes of the escapes are not counted.
    """
    words = " ".join(name.split())
    plottable = "".join(letter for letter in words if letter.isprintable() and font().get_char_index(ord(letter)) != 0)
    if plottable != words or not words:
        plottable = f"#{number} {' '.join(plottable.split())}".rstrip()
    if len(plottable) > longest:
        tail = (longest - 1) // 2
        plottable = f"{plottable[: longest - 1 - tail]}…{plottable[len(plottable) - tail :]}"
    return plottable.replace("$", r"\$")  # matplotlib parses text between two `$` as a formula


@cache
def font() -> FT2Font:
    return font_manager.get_font(font_manager.findfont("DejaVu Sans"))
