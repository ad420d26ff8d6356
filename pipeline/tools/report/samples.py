"""The sections that show samples: the data, its columns, wrong samples, and what a language model writes and expects least."""

import re
from collections.abc import Iterator, Sequence
from io import BytesIO

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from pipeline.core.inputs.image import ImageInputs
from pipeline.core.inputs.table import CategoryColumn, Floats, NumberColumn, TableInputs
from pipeline.core.inputs.text import TextInputs
from pipeline.core.inputs.text_pair import TextPairInputs
from pipeline.core.prepared import Prepared, Split, read_record, shared_samples
from pipeline.core.raw_dataset import TEST, TRAIN
from pipeline.core.tokenizer import Tokenizer
from pipeline.core.untrusted import shown
from pipeline.evaluate.columns import FILE as IMPORTANCES
from pipeline.inference.digits import rounded
from pipeline.prepare.params import data_name
from pipeline.tools.report import figures
from pipeline.tools.report.evidence import Evidence
from pipeline.tools.report.page import Block, Cell, Excerpt, Figures, Gallery, Number, PageSection, Picture, Table

MOST_CLASSES, SHOWN_CLASSES = 24, 8
"""With more than MOST_CLASSES classes, only the SHOWN_CLASSES most frequent and rarest ones are listed."""
MOST_PICTURES, MOST_TEXTS, SPREAD = 20, 12, 3
MOST_PIXELS, MOST_CHARACTERS = 128, 600
"""Larger images are made smaller, and longer texts are cut, so that the page stays small."""
MOST_IN_TABLE, MOST_WRONG = 240, 24
CONFIDENT_FIRST = "The most confident predictions are first; p is the probability of the predicted class."
UNKNOWN_SIGN = "\N{REPLACEMENT CHARACTER}"


def data(evidence: Evidence) -> PageSection:
    prepared = evidence.prepared
    if prepared is None:
        return PageSection("Data", (f"{evidence.paths.prepared} is not the data that this model was trained on.",))
    source, name = evidence.params.get("source.name"), data_name(evidence.params)
    origin = [f"Source: {source}" + (f", {name}" if name != source else "")] if source else []
    classes = class_counts(prepared)
    shared = shared_samples(read_record(evidence.data).splits)
    warning = [f"Samples with equal inputs stand in two splits: {', '.join(shared)}. Such a test sample is no new data."] if shared else []
    return PageSection(
        "Data", (*origin, splits_table(evidence, prepared), *warning, *([classes] if classes else []), *first_samples(prepared))
    )


def splits_table(evidence: Evidence, prepared: Prepared) -> Table:
    records, inputs = read_record(evidence.data).splits, prepared.spec.inputs
    left_out = any(record.left_out for record in records.values())
    rows: list[tuple[Cell, ...]] = []
    for name, split in prepared.splits.items():
        tokens = Number(int(np.count_nonzero(split.inputs != inputs.pad))) if isinstance(inputs, TextInputs) else ""
        rows.append((name, Number(len(split)), tokens, Number(records[name].left_out) if left_out else ""))
    return Table(("split", "samples", "tokens", "left out"), tuple(rows)).without_empty_columns()


def class_counts(prepared: Prepared) -> Table | None:
    """Return how many samples of each class each split has; None if the targets are not classes."""
    names = prepared.spec.targets.output_names
    if not prepared.spec.targets.has_classes:
        return None
    counts = {split: np.bincount(part.targets, minlength=len(names)) for split, part in prepared.splits.items()}
    order, caption = list(range(len(names))), ""
    if len(names) > MOST_CLASSES:
        ranked = np.argsort(-counts[TRAIN], kind="stable").tolist()
        order = [*ranked[:SHOWN_CLASSES], *ranked[-SHOWN_CLASSES:]]
        caption = f"The {SHOWN_CLASSES} most frequent and the {SHOWN_CLASSES} rarest of {len(names):,} classes"
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (names[number], *(Number(int(column[number])) for column in counts.values())) for number in order
    )
    return Table(("class", *counts), rows, caption)


def first_samples(prepared: Prepared) -> tuple[Block, ...]:
    """Return samples of the train split: the first ones of each class, or the first ones if there are no classes."""
    split, inputs = prepared.train, prepared.spec.inputs
    names = prepared.spec.targets.output_names if prepared.spec.targets.has_classes else ()
    if isinstance(inputs, ImageInputs):
        chosen = first_of_classes(split, len(names), MOST_PICTURES)
        return (Gallery(tuple(picture(split.inputs[number], *named(names, split, number)) for number in chosen)),)
    if isinstance(inputs, TextInputs):
        chosen, tokenizer = first_of_classes(split, len(names), MOST_TEXTS), Tokenizer(inputs.tokenizer)
        texts = [tokenizer.decode(split.inputs[number], show_unknown=True) for number in chosen]
        labels = [named(names, split, number) or (f"{number:,}",) for number in chosen]
        return listed(("class",) if names else ("row",), labels, texts)
    if isinstance(inputs, TableInputs):
        chosen = first_of_classes(split, len(names), MOST_TEXTS)
        labels = [named(names, split, number) for number in chosen]
        return (table_rows(inputs, split.inputs[chosen], ("class",) if names else (), labels),)
    if isinstance(inputs, TextPairInputs):
        chosen, tokenizer = first_of_classes(split, 0, MOST_TEXTS), Tokenizer(inputs.tokenizer)
        pairs = zip(*(side.tolist() for side in inputs.texts(split.inputs[chosen])), strict=True)
        rows = [(f"{number:,}", *(cut(tokenizer.decode(text)) for text in pair)) for number, pair in zip(chosen, pairs, strict=True)]
        return (Table(("row", "source", "target"), tuple(rows)),)
    return ()


def listed(header: tuple[str, ...], labels: Sequence[tuple[Cell, ...]], texts: Sequence[str]) -> tuple[Block, ...]:
    """Return texts with their labels: a table of short texts, or excerpts if one is long or has several lines. `header` names the labels."""
    caption = f"{UNKNOWN_SIGN} stands for a token that is not in the vocabulary" if any(UNKNOWN_SIGN in text for text in texts) else ""
    if all(len(text) <= MOST_IN_TABLE and "\n" not in text for text in texts):
        return (Table((*header, "text"), tuple((*label, text) for label, text in zip(labels, texts, strict=True)), caption),)
    headings = [", ".join(f"{name} {cell}" for name, cell in zip(header, label, strict=True)) for label in labels]
    return tuple(Excerpt(heading, cut(text)) for heading, text in zip(headings, texts, strict=True))


def named(names: tuple[str, ...], split: Split, number: int) -> tuple[str, ...]:
    return (names[int(split.targets[number])],) if names else ()


def first_of_classes(split: Split, num_classes: int, most: int) -> list[int]:
    """Return the row numbers of at most `most` samples, the same number of each class, in the order of the classes.

    If there are more classes than `most`, use every n-th class. If there are no classes, return SPREAD rows evenly spread over the split.
    """
    if not num_classes:
        return list(dict.fromkeys(len(split) * place // SPREAD for place in range(SPREAD)))
    classes = range(0, num_classes, -(-num_classes // most))
    each = max(1, most // num_classes)
    return [int(number) for wanted in classes for number in np.flatnonzero(split.targets == wanted)[:each]]


def picture(image: NDArray[np.uint8], *caption: Cell) -> Picture:
    """Return an image (height, width, channels) as PNG. Unless it has three channels, it is shown in grey, as the mean of its channels."""
    pixels = image if image.shape[-1] == 3 else image.mean(axis=-1).round().astype(np.uint8)
    opened, stream = PIL.Image.fromarray(np.ascontiguousarray(pixels)), BytesIO()
    opened.thumbnail((MOST_PIXELS, MOST_PIXELS))
    opened.save(stream, format="PNG", optimize=True)
    return Picture(stream.getvalue(), *opened.size, tuple(map(str, caption)))


def cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} ..."


def mistakes(evidence: Evidence) -> PageSection | None:
    """Return wrong samples of the test split, the most confident predictions first.

    Return None if there are none, or if they are not in this checkout.
    """
    wrong = [(number, row) for number, row in enumerate(evidence.evaluation.predictions) if not row["correct"]]
    if not wrong or evidence.prepared is None:
        return None
    inputs, samples = evidence.prepared.spec.inputs, evidence.prepared.split(TEST).inputs
    chosen = sorted(wrong, key=lambda each: -each[1]["confidence"])[:MOST_WRONG]
    labels = [(row["actual"], row["predicted"], f"{row['confidence']:.2f}") for _, row in chosen]
    note = f"{len(chosen)} of {len(wrong):,} wrong samples."
    if isinstance(inputs, TextInputs):
        tokenizer = Tokenizer(inputs.tokenizer)
        texts = [tokenizer.decode(samples[number], show_unknown=True) for number, _ in chosen]
        return PageSection("Wrong samples", (*listed(("true", "predicted", "p"), labels, texts), note, CONFIDENT_FIRST))
    if not isinstance(inputs, ImageInputs):
        return None
    pictures = tuple(
        picture(samples[number], f"true {actual}", f"predicted {predicted}", f"p = {confidence}")
        for (number, _), (actual, predicted, confidence) in zip(chosen, labels, strict=True)
    )
    return PageSection("Wrong samples", (Gallery(pictures), note, CONFIDENT_FIRST))


HEADING = "\n## Temperature "
BODY = re.compile(r"\n\n```text\n(.*)\n```\s*", re.DOTALL)
MOST_PASSAGES = 8


def generated_texts(evidence: Evidence) -> PageSection | None:
    """Return the texts that the evaluation generated, one for each temperature; None if it generated none."""
    path = evidence.evaluation.tables / "samples.md"
    if not path.is_file():
        return None
    excerpts = tuple(generated(path.read_bytes().decode("utf-8")))  # `read_text` would turn carriage returns into line feeds
    note = "Generated by the evaluation with a fixed seed: the same model writes the same texts."
    return PageSection("Generated text", (*excerpts, note)) if excerpts else None


def generated(document: str) -> Iterator[Excerpt]:
    """Yield the texts in the file `samples.md` of the evaluation, each with its temperature."""
    for part in document.split(HEADING)[1:]:
        temperature, _, _ = part.partition("\n")
        if body := BODY.match(part.removeprefix(temperature)):
            yield Excerpt(f"temperature {temperature}", cut(body[1]))


def written_texts(evidence: Evidence) -> PageSection | None:
    """Return the texts that the model wrote for the pairs with the highest loss; None if it wrote none."""
    rows = evidence.evaluation.table("texts.csv")
    if not rows:
        return None
    cells = tuple((rounded(float(row["loss"])), *(cut(row[name]) for name in ("source", "target", "written"))) for row in rows[:MOST_WRONG])
    note = "The pairs of the test split with the highest loss of a token, each predicted from the true tokens before it."
    return PageSection("Written texts", (Table(("loss", "source", "target", "written"), cells), note))


def passages(evidence: Evidence) -> PageSection | None:
    """Return the passages with the highest loss, and the loss by position."""
    rows, positions = evidence.evaluation.table("surprising.csv"), evidence.evaluation.table("loss_by_position.csv")
    blocks: list[Block] = []
    if positions:
        blocks.append(Figures((figures.position_losses([(int(row["position"]), float(row["loss"])) for row in positions]),)))
    if rows:
        blocks.append("The passages of the test split with the highest loss. The text before each passage ends at the bar.")
        for row in rows[:MOST_PASSAGES]:
            heading = f"from token {int(row['token']):,}: {rounded(float(row['loss']))} nats per token"
            blocks.append(Excerpt(heading, f"{row['before']}\u2502{row['passage']}"))
    return PageSection("Least expected passages", tuple(blocks)) if blocks else None


MOST_COLUMNS, MOST_VALUES, LONGEST = 10, 8, 40
IMPORTANCE = (
    "The importance of a column is by how much the loss of the test split rises if its cells are shuffled among the rows. "
    "Columns that tell the same share it."
)


def columns(evidence: Evidence) -> PageSection | None:
    """Return the columns that the model reads, the most important first; None for other inputs than tables."""
    inputs = evidence.manifest.spec.inputs
    if not isinstance(inputs, TableInputs):
        return None
    measured = {row["column"]: Number(float(row["importance"])) for row in evidence.evaluation.table(IMPORTANCES) or ()}
    described = {str(column.name): column for column in inputs.columns}
    order = sorted(described, key=[*measured, *described].index)
    rows = tuple((shown(name, LONGEST), described[name].kind, values_of(described[name]), measured.get(name, "")) for name in order)
    table = Table(("column", "kind", "in train", "importance"), rows).without_empty_columns()
    return PageSection("Columns", (table, *([IMPORTANCE] if measured else [])))


def values_of(column: NumberColumn | CategoryColumn) -> str:
    """Return a text about the values of a column in train."""
    if isinstance(column, NumberColumn):
        middle = column.cell(column.mean if column.kind == "number" else round(column.mean))
        text = f"{middle:.4g} on average, deviation {column.std:.4g}" if isinstance(middle, float) else f"{middle} on average"
    else:
        text = ", ".join(shown(value, LONGEST) for value in column.values[:MOST_VALUES])
        text += " and others" if column.others or len(column.values) > MOST_VALUES else ""
    return f"{text}; some missing" if column.missing else text


def table_rows(inputs: TableInputs, stored: Floats, header: tuple[str, ...], labels: Sequence[tuple[Cell, ...]]) -> Table:
    """Return stored rows with their labels, and the cells of their first columns. `header` names the labels."""
    chosen = inputs.columns[:MOST_COLUMNS]
    cells = [[spoken(column.cell(number)) for column, number in zip(chosen, row, strict=False)] for row in stored.tolist()]
    caption = f"The first {len(chosen)} of {len(inputs.columns)} columns" if len(inputs.columns) > len(chosen) else ""
    names = [shown(column.name, LONGEST) for column in chosen]
    return Table((*header, *names), tuple((*label, *each) for label, each in zip(labels, cells, strict=True)), caption)


def spoken(cell: float | str | None) -> Cell:
    return Number(cell) if isinstance(cell, float) else shown(cell or "", LONGEST)
