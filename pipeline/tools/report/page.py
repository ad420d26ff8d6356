"""The content of a report: sections of blocks, and how the files in `templates/` render it as an HTML page and as a model card.

Each text that a template outputs is escaped, whether or not the template asks for it, so that no text is read as markup.
"""

import base64
import html
import io
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pipeline.inference.digits import rounded

TEMPLATES = Path(__file__).with_name("templates")
MARKUP = re.compile(r"[\\`*\[\]|~$<>&]|(?<![^\W_])_|_(?![^\W_])|^(?:[#+=-]|[0-9]+(?=[.)](?:\s|$)))")
"""Characters that can begin markup in a dialect of Markdown. Underscores within a word cannot begin markup; some other characters can do so
only at the beginning of a line."""
ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
DIGEST = re.compile("[0-9a-f]{40,64}")
UNKNOWN_DATASET = "unknown"
"""The name of the dataset in the metadata if the source of the data is not known."""


@dataclass(frozen=True)
class Number:
    """A number that is shown rounded. The page also contains its exact value and its `key`.

    `key` is the file and the dotted name of the number, such as `metrics/evaluate.json#test.accuracy`; "" for a number that no file has.
    """

    value: float
    key: str = ""

    def __str__(self) -> str:
        if isinstance(self.value, int):
            return f"{self.value:,}"
        return rounded(self.value)


Cell = str | Number


@dataclass(frozen=True)
class Headline:
    """The main score, in large type. `note` follows in small type: the interval and the number of samples."""

    name: str
    number: Number
    note: str


@dataclass(frozen=True)
class Pairs:
    """A list of pairs of a name and a value."""

    rows: tuple[tuple[str, Cell], ...]


@dataclass(frozen=True)
class Table:
    """A table. With a `summary`, the page hides the table until a reader opens the line with this text."""

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    summary: str = ""

    def without_empty_columns(self, *, keep_titled: bool = False) -> "Table":
        """Return the table without the columns that are empty in every row. With `keep_titled`, columns with a heading stay."""
        rows = (self.header, *self.rows) if keep_titled else self.rows
        kept = [column for column in range(len(self.header)) if any(row[column] != "" for row in rows)]
        rows = tuple(tuple(row[column] for column in kept) for row in self.rows)
        return replace(self, header=tuple(self.header[column] for column in kept), rows=rows)

    @property
    def numeric(self) -> list[bool]:
        """Return for each column whether it has numbers."""
        return [any(isinstance(row[column], Number) for row in self.rows) for column in range(len(self.header))]


@dataclass(frozen=True)
class Confusion(Table):
    """A confusion matrix: a row for each actual class, with its name and the number of samples for each predicted class."""


@dataclass(frozen=True)
class Figure:
    """A figure of the page as SVG, and the table that stands for it in the model card."""

    title: str
    svg: bytes
    table: Table


@dataclass(frozen=True)
class Figures:
    """Figures side by side where there is room."""

    figures: tuple[Figure, ...]


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
    """A text whose lines are kept, such as one that the model generated, with a heading in small type."""

    heading: str
    text: str


Block = str | Headline | Pairs | Table | Figures | Gallery | Excerpt
"""A text is a paragraph."""


@dataclass(frozen=True)
class PageSection:
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class ModelReport:
    """The report of one model. `overview` fills the first screen of the page: its last section stands beside the others.

    `metadata` is the entry of the model in the `model-index` of the model card, as Hugging Face defines it.
    """

    title: str
    subtitle: str
    overview: tuple[PageSection, ...]
    sections: tuple[PageSection, ...]
    tags: tuple[str, ...]
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class Page:
    """A report of one or more models. `comparison` compares several; it is empty for one."""

    title: str
    comparison: tuple[PageSection, ...]
    models: tuple[ModelReport, ...]


def render_html(content: Page) -> str:
    """Return the HTML page."""
    return environment(html_text).get_template("page.html").render(content=content)


def render_markdown(content: Page) -> str:
    """Return the model card in Markdown, which begins with the metadata."""
    front_matter = Markup(metadata(content.models))  # noqa: S704  # YAML, which ruamel has quoted
    return environment(markdown_text).get_template("card.md").render(content=content, metadata=front_matter)


def environment(escape: Callable[[str], str]) -> Environment:
    """Return an environment of Jinja in which every text that a template outputs passes through `escape`.

    Autoescape marks what macros return as escaped, so that it does not pass through `escape` again.
    """

    def finalize(value: Any) -> Any:
        return Markup(escape(value)) if isinstance(value, str) and not isinstance(value, Markup) else value  # noqa: S704  # escaped

    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "kind": lambda block: type(block).__name__.lower(),
        "base64": lambda content: base64.b64encode(content).decode(),
        "lines": lambda text: Markup(html_text(text, lines=True)),  # noqa: S704  # escaped
        "fenced": lambda text: Markup(fenced(text)),  # noqa: S704  # inside a fence, Markdown has no markup
    }
    made.tests["digest"] = DIGEST.fullmatch
    return made


def metadata(models: Sequence[ModelReport]) -> str:
    """Return as YAML what Hugging Face defines: tags, datasets, metrics and the results of each model. An unknown licence is left out."""
    from ruamel.yaml import YAML

    results = [result for each in models for result in each.metadata["results"]]
    datasets = dict.fromkeys(result["dataset"]["name"] for result in results)
    block: dict[str, Any] = {
        "library_name": "pytorch",
        "pipeline_tag": results[0]["task"]["type"],
        "tags": list(dict.fromkeys(tag for each in models for tag in each.tags)),
        "datasets": [name for name in datasets if name != UNKNOWN_DATASET],
        "metrics": list(dict.fromkeys(metric["type"] for result in results for metric in result["metrics"])),
        "model-index": [each.metadata for each in models],
    }
    stream, yaml = io.StringIO(), YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.sort_base_mapping_type_on_output, yaml.width = False, False, 10_000  # type: ignore[assignment]
    yaml.dump({name: value for name, value in block.items() if value}, stream)
    return stream.getvalue()


def visible(text: str, *, lines: bool = False) -> str:
    """Return the text with Python's escapes in place of control characters, marks of text direction, and invalid UTF-8.

    Line feeds and tabs are kept if `lines` is True, else escaped too. Spaces of all kinds (category Zs) are kept.
    """
    return "".join(
        letter if letter.isprintable() or unicodedata.category(letter) == "Zs" or (lines and letter in "\n\t") else ascii(letter)[1:-1]
        for letter in text
    )


def html_text(text: str, *, lines: bool = False) -> str:
    """Return the text for an element or an attribute of HTML."""
    return html.escape(visible(text, lines=lines), quote=True)


def markdown_text(text: str) -> str:
    """Return the text for a paragraph, a heading or the cell of a table: on one line, and without any markup."""

    def escaped(match: re.Match[str]) -> str:
        markup = match[0]
        return ENTITIES.get(markup) or (f"{markup}\\" if markup.isdigit() else f"\\{markup}")  # the number of a list item, or other markup

    return MARKUP.sub(escaped, visible(text).strip())


def fenced(text: str) -> str:
    """Return the text as a block of code in Markdown, between fences that are longer than any in the text."""
    shown = visible(text, lines=True)
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{shown}\n{fence}"
