"""Rendering: hostile content cannot change the structure of a page or of a model card, and charts have whatever points there are."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.tools.report import html, markdown, svg
from pipeline.tools.report.content import (
    Chart,
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
    Picture,
    Reliability,
    Section,
    Series,
    Table,
)
from pipeline.tools.report.run_record import Cost
from pipeline.tools.report.sections.language import generated, samples
from pipeline.tools.report.sections.training import chart, cost_facts, points, shown_metric
from tests.tools.report.pages import Read, card_parts, plain_text, structure

HOSTILE = [
    "<script>alert(1)</script>",
    "</pre></td></table><img src=x onerror=alert(1)>",
    '"><b>',
    "a|b||c\\|d",
    "line\nbreak\r\n\n# heading",
    "\u202egnp.exe\u202c \u2066x\u2069 \u05e9\u05dc\u05d5\u05dd",
    "```\n~~~\n````",
    "*a* _b_ `c` [d](e) ![f](g) ~~h~~",
    "# a",
    "- a",
    "1. a",
    "> a",
    "===",
    "---",
    "&lt;b&gt; &#60;",
    "{% raw %} ${7*7} : y: [",
    "\x00\x1b[31m\x7f\ud800",
    "$x$ @you #1",
]


def everything(text: str) -> Page:
    """Return a page with every kind of block, which has `text` wherever a file's text can be."""
    blocks = (
        Paragraph(text),
        Headline(text, Number(0.5, text), text),
        Pairs(((text, text), ("n", Number(3)))),
        Table((text, "n"), ((text, Number(1.5, text)), ("x", "")), text),
        Charts((Chart(text, text, (Series(text, "train", ((1.0, 2.0), (2.0, 3.0))), Series("v", "valid", ((2.0, 1.0),)))),)),
        Reliability(10, ((0.4, 0.5, 3), (0.9, 1.0, 4))),
        Confusion((text, "b"), ((3, 1), (0, 2))),
        Gallery((Picture(b"png", 8, 8, (text, text)),)),
        Excerpt(text, text),
        Commands(("ls", "pwd")),
        Details(text, (Paragraph(text),)),
    )
    result = {"task": {"type": "x"}, "dataset": {"name": text}, "metrics": [{"type": text, "value": 0.25}]}
    model = ModelReport(text, text, (Section(text, blocks),), (text,), {"name": text, "results": [result]})
    return Page(text, (Section(text, (Paragraph(text),)),), (model, model))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_does_not_change_the_structure_of_the_page(text: str) -> None:
    page, harmless = (Read(html.render(everything(each))) for each in (text, "word"))
    assert page.tags == harmless.tags
    assert [sorted(each.attributes) for each in page.elements] == [sorted(each.attributes) for each in harmless.elements]
    html.render(everything(text)).encode()  # no lone surrogates


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_does_not_change_the_structure_of_the_model_card(text: str) -> None:
    (metadata, tokens), (_, harmless) = (card_parts(markdown.render(everything(each))) for each in (text, "word"))
    assert metadata["model-index"][0]["name"] == metadata["datasets"][0]
    merged = [[kind for kind in structure(each) if kind not in ("text", "text_special")] for each in (tokens, harmless)]
    assert merged[0] == merged[1]


@pytest.mark.parametrize("text", ["<script>", "a|b", "*a* _b_", "snake_case_name", "1. a", "&lt;"])
def test_text_is_read_as_it_was_written(text: str) -> None:
    assert text in Read(html.render(everything(text))).texts
    _, tokens = card_parts(markdown.render(everything(text)))
    assert text in plain_text(tokens).splitlines()


def test_a_text_of_several_lines_keeps_them_where_it_is_shown_as_a_block() -> None:
    text = "first\n\tsecond ``` third\n````"
    assert text in Read(html.render(everything(text))).texts
    _, tokens = card_parts(markdown.render(everything(text)))
    assert f"{text}\n" in [token.content for token in tokens if token.type == "fence"]


@pytest.mark.parametrize(
    "points",
    [((5.0, 1.0),), ((0.0, 0.0), (1.0, 0.0)), ((1.0, -3.0), (2.0, 4.0)), ((1.0, 1e-9), (2.0, 2e-9)), ((10.0, 1e12), (20.0, 3e12))],
    ids=["one", "constant", "negative", "tiny", "huge"],
)
def test_a_chart_is_drawn_for_whatever_points_there_are(points: tuple[tuple[float, float], ...]) -> None:
    drawn = svg.line_chart(Chart("title", "step", (Series("a", "train", points),)))
    assert "nan" not in drawn
    assert "inf" not in drawn
    assert drawn.count("<circle") == len(points)
    places = [float(place) for line in drawn.split('points="')[1:] for pair in line.split('"')[0].split() for place in pair.split(",")]
    assert all(0 <= place <= max(svg.WIDTH, svg.HEIGHT) for place in places)


def test_an_axis_has_round_ticks_inside_of_its_range() -> None:
    assert svg.Axis(0, 1, 0, 100).ticks == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert svg.Axis(0.04, 2.5, 0, 100, logarithmic=True).ticks == pytest.approx([0.05, 0.1, 0.2, 0.5, 1, 2])
    assert len(svg.Axis(1e-30, 1e3, 0, 100, logarithmic=True).ticks) <= svg.MOST_DECADES + 1
    assert svg.Axis(1e-4, 1, 0, 100, logarithmic=True).ticks == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1, 1])


def test_values_that_are_empty_or_not_finite_are_not_in_a_curve() -> None:
    rows = [{"step": "1", "x": ""}, {"step": "2", "x": "nan"}, {"step": 3, "x": 0.5}, {"step": "4", "x": "inf"}, {"step": "5"}]
    assert list(points(rows, "x")) == [(3.0, 0.5)]
    assert chart("x", rows, {"train": "x", "valid": "y"}) == Chart("x", "step", (Series("train", "train", ((3.0, 0.5),)),))
    assert chart("x", rows, {"train": "y"}) is None


@pytest.mark.parametrize(
    ("metric", "shown"),
    [("valid/accuracy", "accuracy"), ("valid/loss", "perplexity"), ("valid/bits_per_byte", "bits_per_byte"), ("", "perplexity")],
)
def test_the_metric_beside_the_loss_is_that_of_the_training_or_the_main_score(metric: str, shown: str) -> None:
    names = ("loss", "perplexity", "bits_per_byte", "accuracy")
    assert shown_metric([{f"valid/{name}": "1" for name in names}], metric) == shown
    assert shown_metric([{"valid/loss": "1"}], metric) == ""


def test_a_long_curve_keeps_its_ends() -> None:
    curve = [(float(step), 0.0) for step in range(1, 10_001)]
    kept = svg.thinned(curve)
    assert len(kept) <= 402
    assert (kept[0], kept[-1]) == (curve[0], curve[-1])


def test_the_table_of_a_long_curve_has_both_values_of_each_step() -> None:
    train = tuple((float(step), 0.0) for step in range(1, 1301))
    valid = tuple((float(step), 1.0) for step in range(50, 1301, 50))
    (table,) = [markdown.charts(Charts((Chart("loss", "step", (Series("train", "train", train), Series("valid", "valid", valid))),)))]
    assert {tuple(row.strip("| ").split(" | ")[1:]) for row in table.splitlines()[4:]} == {("0.0000", "1.0000")}


@pytest.mark.parametrize(("time_s", "text"), [(8.12, "8.1 s"), (61, "1 min 1 s"), (3725, "1 h 2 min")])
def test_a_time_is_written_in_words(time_s: float, text: str) -> None:
    cost = Cost(time_s, num_sessions=1, samples_per_second=None, energy_wh=None, memory_megabytes={})
    assert cost_facts(cost) == (("training time", text),)


@pytest.mark.parametrize("value", [0.9888579387186629, 1.0, 0, 359, 1e-7, 123456.789])
def test_a_number_is_shown_rounded_beside_its_exact_value(value: float) -> None:
    ((key, exact),) = Read(html.cell(Number(value, "file#name"))).numbers
    assert (key, float(exact)) == ("file#name", value)


def test_counts_have_separators_and_small_numbers_keep_their_digits() -> None:
    assert [str(Number(value)) for value in (1295, 0.98886, 0.0000123, 0.0)] == ["1,295", "0.9889", "1.23e-05", "0.0000"]


def test_a_bar_of_the_reliability_diagram_stands_at_its_bin() -> None:
    drawn = svg.reliability(Reliability(4, ((0.25, 0.5, 1), (0.26, 1.0, 1), (1.0, 1.0, 2))))
    lefts = [float(part.split('"')[0]) for part in drawn.split('class="bar" x="')[1:]]
    width = (svg.WIDTH - svg.LEFT - svg.RIGHT) / 4
    assert lefts == pytest.approx([svg.LEFT + 1 + width * number for number in (0, 1, 3)], abs=0.06)


def test_a_carriage_return_in_a_generated_text_is_shown_as_in_a_sample(tmp_path: Path) -> None:
    (tmp_path / "samples.md").write_bytes(b"# Generated texts\n\n## Temperature 1\n\n```text\na\rb\n```\n")
    evidence: Any = SimpleNamespace(evaluation=SimpleNamespace(tables=tmp_path))
    section = samples(evidence)
    assert section
    assert section.blocks[0] == Excerpt("temperature 1", "a\rb")
    page = Page("title", (), (ModelReport("model", "", (section,), (), {}),))
    assert r"a\rb" in Read(html.render(page)).texts


def test_generated_texts_are_read_from_the_document_of_the_evaluation() -> None:
    document = "# Generated texts\n\n## Temperature 0.5\n\n```text\na\n\nb\n```\n\n## Temperature 1\n\n```text\nc` ` `\n```"
    assert list(generated(document)) == [Excerpt("temperature 0.5", "a\n\nb"), Excerpt("temperature 1", "c` ` `")]
