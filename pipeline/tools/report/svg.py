"""Renders charts as inline SVG. Colours are classes of the style sheet, so that a chart is readable in both themes."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeline.tools.report.content import Chart, Reliability, Series, html_text

WIDTH, HEIGHT = 400, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 18, 8, 36
STEPS = (1, 2, 2.5, 5, 10)
MOST_DECADES = 6
MOST_POINTS = 400
"""A curve with more points is thinned, because a reader could not distinguish them."""
FEW = 40
"""A curve with at most this many points has a dot at each point."""
HISTOGRAM = 46
"""Height of the histogram below the reliability diagram."""


@dataclass(frozen=True)
class Axis:
    """Maps the numbers from `low` to `high` to pixels from `start` to `end`, linearly or by their logarithms."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (math.log10(each) if self.logarithmic else each for each in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (at - low) / (high - low)

    @property
    def ticks(self) -> list[float]:
        return decades(self.low, self.high) if self.logarithmic else rounded(self.low, self.high)


def rounded(low: float, high: float, most: int = 5) -> list[float]:
    """Return at most about `most` round numbers between `low` and `high`."""
    magnitude = 10 ** math.floor(math.log10((high - low) / most))
    step = next(factor * magnitude for factor in STEPS if (high - low) / (factor * magnitude) <= most)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def decades(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times the powers of 10 between `low` and `high`; only (some of) the powers if there are many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    exponents = range(first, last + 1, -(-(last - first) // MOST_DECADES))
    factors = (1, 2, 5) if high / low <= 100 else (1,)
    return [
        factor * 10.0**exponent for exponent in exponents for factor in factors if low * 0.999 <= factor * 10.0**exponent <= high * 1.001
    ]


def line_chart(chart: Chart) -> str:
    """Return the chart as an SVG element."""
    across, up = axes_of(chart)
    parts = [*frame(across, up, chart.x_label), *(curve(series, across, up) for series in chart.series)]
    return element(parts, HEIGHT, f"{chart.title} by {chart.x_label}")


def axes_of(chart: Chart) -> tuple[Axis, Axis]:
    numbers = [x for series in chart.series for x, _ in series.points]
    values = [y for series in chart.series for _, y in series.points]
    low, high = min(values), max(values)
    if chart.logarithmic:
        low, high = low / 1.08, high * 1.08
    else:
        margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
        low, high = (0.0 if 0 <= low < 0.3 * high else low - margin), high + margin
    first, last = min(0.0, *numbers), max(numbers)
    return Axis(first, last if last > first else first + 1, LEFT, WIDTH - RIGHT), Axis(low, high, HEIGHT - BOTTOM, TOP, chart.logarithmic)


def frame(across: Axis, up: Axis, x_label: str) -> Iterable[str]:
    """Yield the grid, the ticks with their numbers, and the label of the horizontal axis."""
    for tick in up.ticks:
        y = up(tick)
        yield f'<line class="grid" x1="{across.start:.1f}" x2="{across.end:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield text(across.start - 6, y + 4, short(tick), "end")
    yield f'<line class="axis" x1="{across.start:.1f}" x2="{across.end:.1f}" y1="{up.start:.1f}" y2="{up.start:.1f}"/>'
    for tick in across.ticks:
        yield text(across(tick), up.start + 15, short(tick))
    yield text((across.start + across.end) / 2, up.start + 31, x_label)


def curve(series: Series, across: Axis, up: Axis) -> str:
    places = [(across(x), up(y)) for x, y in thinned(series.points)]
    line = f'<polyline class="{series.style}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>'
    dots = [f'<circle class="{series.style}" cx="{x:.1f}" cy="{y:.1f}" r="2.2"/>' for x, y in places] if len(places) <= FEW else []
    return line + "".join(dots)


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most about MOST_POINTS of the points, evenly spaced, with the last one."""
    stride = max(1, -(-len(points) // MOST_POINTS))
    return list(dict.fromkeys((*points[::stride], points[-1])))


def reliability(diagram: Reliability) -> str:
    """Return accuracy by confidence as an SVG element, with the histogram of the confidences below it."""
    height = 330 + HISTOGRAM
    across, up = Axis(0, 1, LEFT, WIDTH - RIGHT), Axis(0, 1, height - BOTTOM - HISTOGRAM - 14, TOP)
    counts = Axis(0, max(samples for *_, samples in diagram.bins), height - BOTTOM, height - BOTTOM - HISTOGRAM)
    # the mean confidence of a bin lies in the bin, and bin i reaches from above i / num_bins to (i + 1) / num_bins
    numbers = [max(0, math.ceil(confidence * diagram.num_bins - 1e-9) - 1) for confidence, *_ in diagram.bins]
    lefts = [across(number / diagram.num_bins) for number in numbers]
    width = (across.end - across.start) / diagram.num_bins
    bars = [bar("bar", left, width, up, accuracy) for left, (_, accuracy, _) in zip(lefts, diagram.bins, strict=True)]
    shares = [bar("share", left, width, counts, samples) for left, (*_, samples) in zip(lefts, diagram.bins, strict=True)]
    grid = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up(tick):.1f}" y2="{up(tick):.1f}"/>{text(LEFT - 6, up(tick) + 4, short(tick), "end")}'
        for tick in up.ticks
    ]
    diagonal = f'<line class="diagonal" x1="{across(0):.1f}" y1="{up(0):.1f}" x2="{across(1):.1f}" y2="{up(1):.1f}"/>'
    points = Series("accuracy", "valid", tuple((confidence, accuracy) for confidence, accuracy, _ in diagram.bins))
    base = f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{counts.start:.1f}" y2="{counts.start:.1f}"/>'
    labels = [text(across(tick), counts.start + 15, short(tick)) for tick in across.ticks]
    parts = [*grid, *bars, diagonal, curve(points, across, up), *shares, base, *labels, text(WIDTH / 2, counts.start + 31, "confidence")]
    return element(parts, height, "accuracy by confidence")


def bar(style: str, left: float, width: float, up: Axis, value: float) -> str:
    top = up(value)
    return f'<rect class="{style}" x="{left + 1:.1f}" y="{top:.1f}" width="{width - 2:.1f}" height="{up.start - top:.1f}"/>'


def element(parts: Sequence[str], height: float, title: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html_text(title)}">{"".join(parts)}</svg>'


def text(x: float, y: float, content: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html_text(content)}</text>'


def short(value: float) -> str:
    """Return a number of an axis, such as `0.25`, `4,000` or `2e-05`."""
    return f"{value:,.0f}" if abs(value) >= 1000 and value < 1e6 else f"{value:.3g}"
