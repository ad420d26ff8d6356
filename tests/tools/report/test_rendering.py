"""Rendering: hostile content cannot change the structure of a page or of a model card, and figures have whatever points there are."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from pipeline.core.prepared import Split
from pipeline.runs.record import Cost
from pipeline.tools.report import figures
from pipeline.tools.report.page import (
    Confusion,
    Excerpt,
    Figure,
    Figures,
    Gallery,
    Headline,
    ModelReport,
    Number,
    Page,
    PageSection,
    Pairs,
    Picture,
    Table,
    render_html,
    render_markdown,
)
from pipeline.tools.report.results import cost_facts, shown_metric, unigram_perplexity
from pipeline.tools.report.samples import generated_texts
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
        text,
        Headline(text, Number(0.5, text), text),
        Pairs(((text, text), ("n", Number(3)))),
        Table((text, "n"), ((text, Number(1.5, text)), ("x", "")), text),
        Figures((Figure(text, b"<svg/>", Table((text, text, "v"), ((Number(1), text, ""),), text)),)),
        Confusion((text, text, "b"), ((text, Number(3), Number(1)), ("b", Number(0), Number(2)))),
        Gallery((Picture(b"png", 8, 8, (text, text)),)),
        Excerpt(text, text),
        Excerpt("", text),
        Table((text,), ((text,),), text, summary=text),
    )
    result = {"task": {"type": "x"}, "dataset": {"name": text}, "metrics": [{"type": text, "value": 0.25}]}
    overview = (PageSection(text, (text,)), PageSection(text, blocks[:2]))
    model = ModelReport(text, text, overview, (PageSection(text, blocks),), (text,), {"name": text, "results": [result]})
    return Page(text, (PageSection(text, (text,)),), (model, model))


def test_a_column_without_values_is_left_out_unless_its_heading_says_something() -> None:
    table = Table(("", "parameter", "A"), (("", "prompt", ""), ("", "seed", "")))
    assert table.without_empty_columns().header == ("parameter",)
    assert table.without_empty_columns(keep_titled=True).header == ("parameter", "A")


def test_hostile_text_does_not_change_the_structure_of_the_page() -> None:
    harmless = Read(render_html(everything("word")))
    for text in HOSTILE:
        page = Read(render_html(everything(text)))
        assert page.tags == harmless.tags, text
        assert [sorted(each.attributes) for each in page.elements] == [sorted(each.attributes) for each in harmless.elements], text
        page.page.encode()  # no lone surrogates


def test_hostile_text_does_not_change_the_structure_of_the_model_card() -> None:
    _, harmless = card_parts(render_markdown(everything("word")))
    for text in HOSTILE:
        metadata, tokens = card_parts(render_markdown(everything(text)))
        assert metadata["model-index"][0]["name"] == metadata["datasets"][0]
        merged = [[kind for kind in structure(each) if kind not in ("text", "text_special")] for each in (tokens, harmless)]
        assert merged[0] == merged[1], text


def test_text_is_read_as_it_was_written() -> None:
    for text in ("<script>", "a|b", "*a* _b_", "snake_case_name", "1. a", "&lt;"):
        assert text in Read(render_html(everything(text))).texts
        _, tokens = card_parts(render_markdown(everything(text)))
        assert text in plain_text(tokens).splitlines()


def test_a_text_of_several_lines_keeps_them_where_it_is_shown_as_a_block() -> None:
    text = "first\n\tsecond ``` third\n````"
    assert text in Read(render_html(everything(text))).texts
    _, tokens = card_parts(render_markdown(everything(text)))
    assert f"{text}\n" in [token.content for token in tokens if token.type == "fence"]


def test_a_figure_is_plotted_for_whatever_points_there_are() -> None:
    for points in (((5.0, 1.0),), ((1.0, -3.0), (2.0, 4.0)), ((10.0, 1e12), (20.0, 3e12))):
        rows = [{"step": x, "train/objective": y} for x, y in points]
        (figure,) = figures.of_training(rows, "", "nats")
        assert b"<svg" in figure.svg
        assert b"nan" not in figure.svg
        assert figure.table == Table(("step", "train"), tuple((Number(int(x)), Number(y)) for x, y in points), "loss (nats)")
    assert (figure,) == figures.of_training(rows, "", "nats")


def test_the_metric_beside_the_loss_is_that_of_the_training_or_the_main_score() -> None:
    rows = [{f"valid/{name}": "1" for name in ("loss", "perplexity", "bits_per_byte", "accuracy")}]
    for metric, shown in (("valid/bits_per_byte", "bits_per_byte"), ("valid/loss", "perplexity"), ("", "perplexity")):
        assert shown_metric(rows, metric) == shown
    assert shown_metric([{"valid/loss": "1"}], "valid/accuracy") == ""


def test_a_long_curve_keeps_its_ends() -> None:
    curve = [(step, 0.0) for step in range(1, 10_001)]
    kept = figures.thinned(curve, 400)
    assert len(kept) <= 402
    assert (kept[0], kept[-1]) == (curve[0], curve[-1])


def test_the_table_of_a_long_curve_has_both_values_of_each_step() -> None:
    train = [(step, 0.0) for step in range(1, 1301)]
    valid = [(step, 1.0) for step in range(50, 1301, 50)]
    table = figures.table("loss", "step", {"train": train, "valid": valid})
    assert {row[1:] for row in table.rows} == {(Number(0.0), Number(1.0))}
    assert len(table.rows) <= 14


def test_the_baseline_of_a_language_model_is_the_perplexity_of_the_frequencies_of_its_tokens() -> None:
    splits = {"train": Split(np.array([[3, 3, 4], [0, 0, 0]]), np.empty((2, 0))), "test": Split(np.array([[3, 4, 0]]), np.empty((1, 0)))}
    spec = SimpleNamespace(num_outputs=5, inputs=SimpleNamespace(pad=0))
    prepared: Any = SimpleNamespace(spec=spec, train=splits["train"], split=splits.get)
    assert math.isclose(unigram_perplexity(prepared), 1 / math.sqrt(3 / 7 * 2 / 7))  # counts with one added: 1, 1, 3, 2, without padding


def test_a_time_is_written_in_words() -> None:
    for time_s, text in ((8.12, "8.1 s"), (60, "1 min 0 s"), (3725, "1 h 2 min")):
        cost = Cost(time_s, num_sessions=1, samples_per_second=None, energy_wh=None, memory_megabytes={})
        assert cost_facts(cost) == (("training time", text),)


def test_a_number_is_shown_rounded_beside_its_exact_value() -> None:
    for value in (0.9888579387186629, 359, 1e-7):
        content = Page(
            "title", (), (ModelReport("model", "", (PageSection("a", (Pairs((("n", Number(value, "file#name")),)),)),), (), (), {}),)
        )
        ((key, exact),) = Read(render_html(content)).numbers
        assert (key, float(exact)) == ("file#name", value)


def test_counts_have_separators_and_small_numbers_keep_their_digits() -> None:
    assert [str(Number(value)) for value in (1295, 0.98886, 0.0000123, 0.0)] == ["1,295", "0.9889", "1.23e-05", "0.0000"]


def test_the_number_of_bins_is_found_from_the_centres_of_some() -> None:
    for number in (1, 4, 15):
        centres = (np.arange(number) + 0.5) / number
        assert figures.num_bins(centres) == number
        assert figures.num_bins(centres[[0, *range(min(2, number - 1), number)]]) == number


def test_the_table_of_the_reliability_diagram_has_its_bins() -> None:
    rows = [{"bin_centre": str(centre), "confidence": "0.25", "accuracy": "0.5", "samples": "3"} for centre in (0.125, 0.875)]
    figure = figures.reliability(rows)
    assert figure.table.rows == ((Number(0.25), Number(0.5), Number(3)),) * 2
    assert figure == figures.reliability(rows)


def test_a_carriage_return_in_a_generated_text_is_shown_as_in_a_sample(tmp_path: Path) -> None:
    (tmp_path / "samples.md").write_bytes(b"# Generated texts\n\n## Temperature 1\n\n```text\na\rb\n```\n")
    evidence: Any = SimpleNamespace(evaluation=SimpleNamespace(tables=tmp_path))
    section = generated_texts(evidence)
    assert section
    assert section.blocks[0] == Excerpt("temperature 1", "a\rb")
    page = Page("title", (), (ModelReport("model", "", (section,), (), (), {}),))
    assert r"a\rb" in Read(render_html(page)).texts
