"""Renders the content of a report as one HTML page without scripts and network access, light and dark. Images and charts are embedded."""

import base64
import json
import re
from collections.abc import Callable
from typing import Any

from pipeline.tools.report import svg
from pipeline.tools.report.content import (
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
    html_text,
)

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1d1d1b; --muted: #66645f; --rule: #dcdad4; --faint: #f5f4f0;
  --train: #0072b2; --valid: #c4500a; --rate: #00805e; --norm: #8a4f7d; --heat: 0 114 178;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #16181b; --ink: #e6e3dc; --muted: #9d9a93; --rule: #34373c; --faint: #1e2125;
    --train: #62b4ea; --valid: #f0935a; --rate: #45c19c; --norm: #cf9bc4; --heat: 70 150 210;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 3rem 1.25rem 5rem; max-width: 58rem; background: var(--paper); color: var(--ink);
  font: 1.0625rem/1.55 Charter, "Bitstream Charter", "Source Serif 4", Cambria, Georgia, "DejaVu Serif", serif;
  font-variant-numeric: lining-nums tabular-nums; overflow-wrap: anywhere;
}
h1 { font-size: 1.9rem; line-height: 1.2; font-weight: 600; margin: 0 0 .25rem; }
h2 { font-size: 1.25rem; font-weight: 600; margin: 3rem 0 .9rem; padding-top: .6rem; border-top: 1px solid var(--rule); }
section + article, article + article { margin-top: 5rem; }
p { margin: .7rem 0; max-width: 44rem; }
p.subtitle, p.note, figcaption, caption, summary, .label, footer { color: var(--muted); font-size: .9rem; }
p.subtitle { margin: 0 0 1.4rem; }
nav { font-size: .9rem; margin: 0 0 1rem; }
nav a { color: var(--train); text-decoration: none; margin-right: 1rem; display: inline-block; }
nav a:hover { text-decoration: underline; }
.headline { margin: .2rem 0 1.2rem; }
.headline .label { display: block; }
.headline data { font-size: 2.6rem; line-height: 1.15; font-weight: 600; }
dl { display: grid; grid-template-columns: minmax(8rem, max-content) 1fr; gap: .3rem 1.5rem; margin: .6rem 0; }
dt { color: var(--muted); }
dd { margin: 0; }
.wide { display: inline-block; vertical-align: top; overflow-x: auto; margin: .9rem 1.6rem .5rem 0; max-width: 100%; }
table { border-collapse: collapse; font-size: .95rem; overflow-wrap: normal; }
caption { text-align: left; padding-bottom: .35rem; caption-side: top; }
th, td { padding: .22rem 1.1rem .22rem 0; text-align: left; vertical-align: baseline; }
th:last-child, td:last-child { padding-right: 0; }
thead th { font-weight: 600; border-bottom: 1px solid var(--ink); }
tbody tr + tr > * { border-top: 1px solid var(--rule); }
tbody th { font-weight: 400; }
td.number, th.number { text-align: right; }
tbody th, td.text { max-width: 26rem; overflow-wrap: break-word; }
.confusion { border-collapse: separate; border-spacing: 2px; }
.confusion th { font-weight: 400; padding: .15rem .5rem; white-space: nowrap; border: 0; min-width: 0;
  vertical-align: middle; }
.confusion thead th { text-align: center; vertical-align: bottom; }
.confusion thead td { background: none; }
.confusion tbody tr + tr > * { border: 0; }
.confusion tbody th { text-align: right; }
.confusion td { min-width: 2.3rem; height: 2.1rem; padding: 0 .3rem; text-align: center; vertical-align: middle; border: 0;
  background: linear-gradient(rgb(var(--heat) / var(--share)), rgb(var(--heat) / var(--share))), var(--faint); }
.confusion td.high { color: #ffffff; }
.confusion th .name { display: inline-block; max-width: 9rem; overflow: hidden; text-overflow: ellipsis; vertical-align: bottom; }
.confusion thead .name { max-width: 5.5rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); gap: 1.2rem 2rem; margin: .9rem 0; }
figure { margin: 0; }
.charts figcaption, .reliability figcaption { margin-bottom: .2rem; }
.reliability { max-width: 30rem; }
svg { display: block; width: 100%; height: auto; }
svg text { font-size: 11px; fill: var(--muted); }
svg .grid { stroke: var(--rule); stroke-width: 1; }
svg .axis { stroke: var(--muted); stroke-width: 1; }
svg .diagonal { stroke: var(--muted); stroke-width: 1; stroke-dasharray: 4 4; }
svg polyline { fill: none; stroke: var(--series); stroke-width: 1.75; stroke-linejoin: round; stroke-linecap: round; }
svg circle { fill: var(--series); }
svg .bar { fill: var(--train); opacity: .3; } svg .share { fill: var(--muted); opacity: .55; }
.key { margin-left: .9rem; display: inline-block; max-width: 100%; }
.key i { display: inline-block; width: 1.1rem; height: 0; border-top: 2px solid var(--series); vertical-align: middle; margin-right: .35rem; }
.train { --series: var(--train); } .valid { --series: var(--valid); } .rate { --series: var(--rate); } .norm { --series: var(--norm); }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(6.2rem, 1fr)); gap: 1rem .9rem; margin: .9rem 0; }
.gallery img { width: 100%; height: auto; max-width: 8rem; display: block; image-rendering: pixelated; border: 1px solid var(--rule); }
.gallery figcaption { line-height: 1.3; margin-top: .3rem; font-size: .85rem; }
.excerpt { margin: .9rem 0; }
.excerpt pre { margin-top: .2rem; }
pre { font: .875rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; background: var(--faint);
  padding: .7rem .9rem; margin: .7rem 0; white-space: pre-wrap; overflow-wrap: anywhere; border-radius: 3px; }
code { font: .82em/1.4 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
details { margin: .9rem 0; }
summary { cursor: pointer; }
footer { margin-top: 4rem; border-top: 1px solid var(--rule); padding-top: .8rem; }
@media (max-width: 34rem) {
  body { padding: 1.5rem 1rem 3rem; font-size: 1rem; }
  h1 { font-size: 1.55rem; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .5rem; }
  th, td { padding-right: .6rem; }
  table { font-size: .88rem; }
  .wide { display: block; margin-right: 0; }
}
@media print { body { max-width: none; padding: 0; } nav { display: none; } h2 { break-after: avoid; } figure, tr { break-inside: avoid; } }
"""


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
