"""Renders the content of a report as one HTML page without scripts and network access. Images and charts are embedded."""

import base64
import json
import re
from collections.abc import Callable
from typing import Any

from pipeline.report_page import svg
from pipeline.report_page.content import (
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
)
from pipeline.report_page.escaping import html_text
from pipeline.report_page.style import STYLE

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The browser then loads nothing and runs nothing, whatever a text of the data contains."""
DIGEST = re.compile("[0-9a-f]{40,64}")
DARK = 0.55
"""In a cell of the confusion matrix with at least this share, the text is white."""


def render(page: Page) -> str:
    """Return the whole page."""
    several = len(page.models) > 1
    links = "".join(f'<a href="#model-{number}">{html_text(each.title)}</a> ' for number, each in enumerate(page.models, 1))
    heading = [f"<h1>{html_text(page.title)}</h1>\n<nav>{links}</nav>"] if several else []
    comparison = [section(each, f"comparison-{number}") for number, each in enumerate(page.comparison, 1)]
    articles = [article(report, number) for number, report in enumerate(page.models, 1)]
    body = "\n".join([*heading, *comparison, *articles])
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{html_text(page.title)}</title>
<style>{STYLE}</style>
</head>
<body>
{body}
</body>
</html>
"""


def article(report: ModelReport, number: int) -> str:
    names = {f"model-{number}-{place}": each for place, each in enumerate(report.sections, 1)}
    links = "".join(f'<a href="#{name}">{html_text(each.title)}</a> ' for name, each in names.items())
    sections = "\n".join(section(each, name) for name, each in names.items())
    return f"""<article id="model-{number}">
<h1>{html_text(report.title)}</h1>
<p class="subtitle">{html_text(report.subtitle)}</p>
<nav>{links}</nav>
{sections}
</article>"""


def section(content: Section, name: str) -> str:
    blocks = "\n".join(map(block, content.blocks))
    return f'<section id="{name}">\n<h2>{html_text(content.title)}</h2>\n{blocks}\n</section>'


def block(content: Block) -> str:
    return RENDERERS[type(content)](content)


def cell(content: Cell) -> str:
    """Return the HTML of a cell: a number with its exact value and its key, or a text whose direction does not affect the text around it."""
    if isinstance(content, Number):
        key = f' data-key="{html_text(content.key)}"' if content.key else ""
        return f'<data value="{json.dumps(content.value)}"{key}>{html_text(str(content))}</data>'
    return f"<code>{content}</code>" if DIGEST.fullmatch(content) else f"<bdi>{html_text(content)}</bdi>"


def headline(content: Headline) -> str:
    return f'<p class="headline"><span class="label">{html_text(content.name)}</span>{cell(content.number)} <span class="label">{html_text(content.note)}</span></p>'


def pairs(content: Pairs) -> str:
    rows = "\n".join(f"<dt>{html_text(name)}</dt><dd>{cell(value)}</dd>" for name, value in content.rows)
    return f"<dl>\n{rows}\n</dl>"


def table(content: Table) -> str:
    caption = f"<caption>{html_text(content.caption)}</caption>" if content.caption else ""
    columns = list(zip(*content.rows, strict=True)) or [()] * len(content.header)
    numeric = [any(isinstance(each, Number) for each in column) for column in columns]
    header = "".join(
        f'<th scope="col"{" class=number" if right else ""}>{html_text(name)}</th>'
        for name, right in zip(content.header, numeric, strict=True)
    )
    rows = "\n".join(f"<tr>{row(cells, numeric)}</tr>" for cells in content.rows)
    return f'<div class="wide"><table>{caption}<thead><tr>{header}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>'


def row(cells: tuple[Cell, ...], numeric: list[bool]) -> str:
    first, *others = cells
    kinds = ["number" if right else "text" for right in numeric]
    return f'<th scope="row">{cell(first)}</th>' + "".join(
        f'<td class="{kind}">{cell(each)}</td>' for each, kind in zip(others, kinds[1:], strict=True)
    )


def charts(content: Charts) -> str:
    figures = []
    for chart in content.charts:
        several = len(chart.series) > 1
        keys = "".join(f'<span class="key"><i class="{each.style}"></i>{html_text(each.name)}</span>' for each in chart.series if several)
        figures.append(f"<figure><figcaption>{html_text(chart.title)}{keys}</figcaption>{svg.line_chart(chart)}</figure>")
    return f'<div class="charts">{"".join(figures)}</div>'


def reliability(content: Reliability) -> str:
    caption = "accuracy by confidence; below, the number of predictions"
    return f'<figure class="reliability"><figcaption>{caption}</figcaption>{svg.reliability(content)}</figure>'


def confusion(content: Confusion) -> str:
    """Return the matrix as a table. The colour of a cell shows its share of the row, on a scale on which a few percent are visible."""
    header = "".join(
        f'<th scope="col"><span class="name" title="{html_text(name)}"><bdi>{html_text(name)}</bdi></span></th>' for name in content.classes
    )
    rows = []
    for name, counts in zip(content.classes, content.counts, strict=True):
        shares = [(count, (count / max(1, sum(counts))) ** 0.5 * 0.9) for count in counts]
        cells = "".join(
            f'<td{" class=high" if share >= DARK else ""} style="--share:{share:.3f}">{count if count else ""}</td>'
            for count, share in shares
        )
        rows.append(
            f'<tr><th scope="row"><span class="name" title="{html_text(name)}"><bdi>{html_text(name)}</bdi></span></th>{cells}</tr>'
        )
    caption = "Rows: actual class; columns: predicted class"
    return f'<div class="wide"><table class="confusion"><caption>{caption}</caption><thead><tr><td></td>{header}</tr></thead>\n<tbody>\n{"".join(rows)}\n</tbody></table></div>'


def gallery(content: Gallery) -> str:
    figures = []
    for picture in content.pictures:
        data = base64.b64encode(picture.png).decode()
        caption = "<br>".join(f"<bdi>{html_text(line)}</bdi>" for line in picture.caption)
        alt = html_text(", ".join(picture.caption) or "a sample")
        image = f'<img src="data:image/png;base64,{data}" width="{picture.width}" height="{picture.height}" alt="{alt}">'
        figures.append(f"<figure>{image}<figcaption>{caption}</figcaption></figure>")
    return f'<div class="gallery">{"".join(figures)}</div>'


def excerpt(content: Excerpt) -> str:
    heading, text = html_text(content.heading), html_text(content.text, lines=True)
    return f'<div class="excerpt"><span class="label"><bdi>{heading}</bdi></span><pre dir="auto">{text}</pre></div>'


def details(content: Details) -> str:
    inner = "\n".join(map(block, content.blocks))
    return f"<details><summary>{html_text(content.summary)}</summary>\n{inner}\n</details>"


RENDERERS: dict[type, Callable[[Any], str]] = {
    Paragraph: lambda content: f'<p class="note">{html_text(content.text)}</p>',
    Headline: headline,
    Pairs: pairs,
    Table: table,
    Charts: charts,
    Reliability: reliability,
    Confusion: confusion,
    Gallery: gallery,
    Excerpt: excerpt,
    Commands: lambda content: f"<pre>{html_text(chr(10).join(content.lines), lines=True)}</pre>",
    Details: details,
}
