"""Renders the content of a report as Markdown, with the metadata block of a Hugging Face model card. Images and charts are left out."""

import io
from collections.abc import Callable, Sequence
from typing import Any

from pipeline.tools.report.content import (
    UNKNOWN_DATASET,
    Block,
    Cell,
    Charts,
    Commands,
    Confusion,
    Details,
    Excerpt,
    Gallery,
    Headline,
    ModelReport,
    Number,
    Page,
    Pairs,
    Paragraph,
    Reliability,
    Section,
    Table,
    fenced,
    markdown_text,
)

MOST_ROWS = 12
"""Largest number of rows of a table that stands for a chart."""


def render(page: Page) -> str:
    """Return the whole document: metadata, comparison, and the sections of each model."""
    heading = [f"# {markdown_text(page.title)}"] if len(page.models) > 1 else []
    parts = [*heading, *map(section, page.comparison), *map(report, page.models)]
    return f"{front_matter(page.models)}\n" + "\n\n".join(parts) + "\n"


def front_matter(models: Sequence[ModelReport]) -> str:
    """Return the YAML block of Hugging Face: tags, datasets, metrics and the results of each model. An unknown licence is left out."""
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
    return f"---\n{stream.getvalue()}---\n"


def report(content: ModelReport) -> str:
    return "\n\n".join([f"# {markdown_text(content.title)}", markdown_text(content.subtitle), *map(section, content.sections)])


def section(content: Section) -> str:
    blocks = [text for text in map(block, content.blocks) if text]
    return "\n\n".join([f"## {markdown_text(content.title)}", *blocks])


def block(content: Block) -> str:
    return RENDERERS[type(content)](content)


def cell(content: Cell) -> str:
    return str(content) if isinstance(content, Number) else markdown_text(content)


def grid(header: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str = "") -> str:
    lines = [
        f"| {' | '.join(map(markdown_text, header))} |",
        f"|{' --- |' * len(header)}",
        *(f"| {' | '.join(map(cell, row))} |" for row in rows),
    ]
    return "\n".join([*([markdown_text(caption), ""] if caption else []), *lines])


def charts(content: Charts) -> str:
    """Return a table for each chart, with the values at some of the points."""
    return "\n\n".join(
        grid((chart.x_label, *(each.name for each in chart.series)), chart_rows(chart.series), chart.title) for chart in content.charts
    )


def chart_rows(series: Sequence[Any]) -> list[tuple[Cell, ...]]:
    """Return about MOST_ROWS rows at most: evenly spaced points of the curve with the fewest points, and the other curves' values there."""
    fewest = min(series, key=lambda each: len(each.points)).points
    stride = -(-len(fewest) // MOST_ROWS)
    numbers = list(dict.fromkeys([*(x for x, _ in fewest[::stride]), fewest[-1][0]]))
    values = [dict(each.points) for each in series]
    return [(Number(round(x)), *(Number(each[x]) if x in each else "" for each in values)) for x in numbers]


def reliability(content: Reliability) -> str:
    rows = [(Number(confidence), Number(accuracy), Number(samples)) for confidence, accuracy, samples in content.bins]
    return grid(("mean confidence", "accuracy", "predictions"), rows)


def confusion(content: Confusion) -> str:
    rows: list[tuple[Cell, ...]] = [(name, *map(Number, counts)) for name, counts in zip(content.classes, content.counts, strict=True)]
    return grid(("actual \\ predicted", *content.classes), rows)


def gallery(content: Gallery) -> str:
    """Return a table of the image captions that have more than one line; "" if there are none."""
    captions = [picture.caption for picture in content.pictures if len(picture.caption) > 1]
    return grid([""] * len(captions[0]), captions) if captions else ""


def headline(content: Headline) -> str:
    return f"**{markdown_text(content.name)} {content.number}**, {markdown_text(content.note)}"


def details(content: Details) -> str:
    return "\n\n".join([markdown_text(content.summary), *map(block, content.blocks)])


RENDERERS: dict[type, Callable[[Any], str]] = {
    Paragraph: lambda content: markdown_text(content.text),
    Headline: headline,
    Pairs: lambda content: "\n".join(f"- {markdown_text(name)}: {cell(value)}" for name, value in content.rows),
    Table: lambda content: grid(content.header, content.rows, content.caption),
    Charts: charts,
    Reliability: reliability,
    Confusion: confusion,
    Gallery: gallery,
    Excerpt: lambda content: f"{markdown_text(content.heading)}\n\n{fenced(content.text)}",
    Commands: lambda content: fenced("\n".join(content.lines)),
    Details: details,
}
