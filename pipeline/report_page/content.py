"""The content of a report: sections of typed blocks, from which `html` and `markdown` are rendered. Nothing in it is escaped."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Number:
    """A number that is shown rounded. The page also contains its exact value, and `key`, the place where a file has it, such as
    `metrics/evaluate.json#test.accuracy`; "" for a number that no file has.
    """

    value: float
    key: str = ""

    def __str__(self) -> str:
        if isinstance(self.value, int):
            return f"{self.value:,}"
        small = self.value != 0 and abs(self.value) < 1e-3
        return f"{self.value:.3g}" if small or abs(self.value) >= 1e5 else f"{self.value:.4f}"


Cell = str | Number
UNKNOWN_DATASET = "unknown"
"""The name of the dataset in the metadata if the source of the data is not known."""


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Headline:
    """The main score, in large type. `note` follows in small type: the interval and the number of samples."""

    name: str
    number: Number
    note: str


@dataclass(frozen=True)
class Facts:
    """Names, each with a value."""

    rows: tuple[tuple[str, Cell], ...]


@dataclass(frozen=True)
class Table:
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""


@dataclass(frozen=True)
class Series:
    """A curve. `points` are pairs (x, y) of finite numbers, with ascending x. `style` is the class of its colour: train, valid or rate."""

    name: str
    style: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Chart:
    title: str
    x_label: str
    series: tuple[Series, ...]
    logarithmic: bool = False


@dataclass(frozen=True)
class Charts:
    """Charts side by side where there is room."""

    charts: tuple[Chart, ...]


@dataclass(frozen=True)
class Reliability:
    """The reliability diagram. Each of `bins` is (mean confidence, accuracy, number of predictions), in ascending order of confidence."""

    num_bins: int
    bins: tuple[tuple[float, float, int], ...]


@dataclass(frozen=True)
class Confusion:
    """Numbers of samples: `counts[actual][predicted]`."""

    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Picture:
    """An image as PNG, its size in pixels, and the lines below it."""

    png: bytes
    width: int
    height: int
    caption: tuple[str, ...]


@dataclass(frozen=True)
class Gallery:
    pictures: tuple[Picture, ...]


@dataclass(frozen=True)
class Excerpt:
    """A text of the data or of the model, with a heading in small type."""

    heading: str
    text: str


@dataclass(frozen=True)
class Commands:
    """Lines for a shell."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Details:
    """Blocks that are folded until a reader opens them."""

    summary: str
    blocks: "tuple[Block, ...]"


Block = Paragraph | Headline | Facts | Table | Charts | Reliability | Confusion | Gallery | Excerpt | Commands | Details


@dataclass(frozen=True)
class Section:
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class ModelReport:
    """The report of one model. `metadata` is its entry in the `model-index` of the model card, as Hugging Face defines it."""

    title: str
    subtitle: str
    sections: tuple[Section, ...]
    tags: tuple[str, ...]
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class Page:
    """A report of one or more models. `comparison` compares several; it is empty for one."""

    title: str
    comparison: tuple[Section, ...]
    models: tuple[ModelReport, ...]
