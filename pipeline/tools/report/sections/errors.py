"""The sections on a classifier's errors: the confusion matrix, the worst classes, wrong samples and the calibration."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.core.inputs.image import ImageInputs
from pipeline.core.raw_dataset import TEST
from pipeline.tools.report.content import Block, Confusion, Gallery, Number, Pairs, Paragraph, Reliability, Section, Table
from pipeline.tools.report.evidence import Evidence
from pipeline.tools.report.sections.data import listed, picture
from pipeline.tools.report.sections.result import PER_CLASS, key

MOST_CLASSES = 24
"""With more classes, the most frequent confusions are listed instead of a matrix."""
MOST_PAIRS, MOST_WORST, MOST_WRONG = 15, 12, 24
CONFIDENT_FIRST = Paragraph("The most confident predictions are first; p is the probability of the predicted class.")

Rows = Sequence[Mapping[str, str]]


def section(evidence: Evidence) -> Section | None:
    rows = evidence.evaluation.table("confusion.csv")
    if not rows:
        return None
    matrix, worst = confusions(rows, evidence.manifest.spec.targets.output_names), worst_classes(evidence)
    return Section("Errors", (matrix, worst) if worst else (matrix,))


def confusions(rows: Rows, classes: tuple[str, ...]) -> Block:
    """Return the confusion matrix or, with many classes, the most frequent confusions."""
    pairs = Counter((row["actual"], row["predicted"]) for row in rows)
    if len(classes) <= MOST_CLASSES:
        return Confusion(classes, tuple(tuple(pairs[actual, predicted] for predicted in classes) for actual in classes))
    wrong = [(pair, count) for pair, count in pairs.most_common() if pair[0] != pair[1]][:MOST_PAIRS]
    return Table(("actual", "predicted", "samples"), tuple((*pair, Number(count)) for pair, count in wrong), "Most frequent confusions")


def worst_classes(evidence: Evidence) -> Table | None:
    """Return the classes with the lowest F1, the worst first."""
    per_class = evidence.evaluation.scores.get(PER_CLASS)
    if not isinstance(per_class, Mapping):
        return None
    worst = sorted(per_class.items(), key=lambda item: item[1]["f1"])[:MOST_WORST]
    columns = tuple(worst[0][1])
    rows = tuple(
        (name, *(Number(scores[column], key(evidence, f"{PER_CLASS}.{name}.{column}")) for column in columns)) for name, scores in worst
    )
    caption = (
        f"The {len(worst)} worst of {len(per_class):,} classes by F1" if len(per_class) > len(worst) else "Classes, the worst by F1 first"
    )
    return Table(("class", *columns), rows, caption)


def mistakes(evidence: Evidence) -> Section | None:
    """Return wrong samples of the test split, the most confident predictions first.

    Return None if there are none, or if they are images that are not in this checkout. If only their table is missing, the section names the
    remedy.
    """
    table = evidence.evaluation.table("mistakes.csv")
    num_wrong = sum(row["actual"] != row["predicted"] for row in evidence.evaluation.table("confusion.csv") or ())
    if table is None and num_wrong:  # as after an evaluation by an older version
        return Section("Wrong samples", (Paragraph("The evaluation has no mistakes.csv: run `dvc repro -f evaluate`."),))
    rows = (table or [])[:MOST_WRONG]
    if rows and "text" in rows[0]:
        labels = [(row["actual"], row["predicted"], f"{float(row['confidence']):.2f}") for row in rows]
        return Section("Wrong samples", (*listed(("true", "predicted", "p"), labels, [row["text"] for row in rows]), CONFIDENT_FIRST))
    if not rows or evidence.prepared is None or not isinstance(evidence.manifest.spec.inputs, ImageInputs):
        return None
    images = evidence.prepared.split(TEST).inputs
    pictures = tuple(
        picture(images[int(row["sample"])], f"true {row['actual']}", f"predicted {row['predicted']}", f"p = {float(row['confidence']):.2f}")
        for row in rows
    )
    return Section("Wrong samples", (Gallery(pictures), Paragraph(f"{len(pictures)} of {num_wrong:,} wrong samples."), CONFIDENT_FIRST))


def calibration(evidence: Evidence) -> Section | None:
    """Return the reliability diagram and the expected calibration error, from the table of the evaluation."""
    rows = evidence.evaluation.table("reliability.csv")
    if not rows:
        return None
    bins = tuple((float(row["confidence"]), float(row["accuracy"]), int(row["samples"])) for row in rows)
    name = "expected_calibration_error"
    facts = Pairs((("expected calibration error", Number(evidence.evaluation.scores[name], key(evidence, name))),))
    meaning = Paragraph(
        "A bin of predictions on the diagonal is right as often as its mean confidence says; below it, the model is too confident."
    )
    return Section("Calibration", (Reliability(num_bins(rows), bins), facts, meaning))


def num_bins(rows: Rows) -> int:
    """Return the number of bins, from the centres of those that are not empty: each centre is (i + 0.5) / num_bins."""
    centres = np.array([float(row["bin_centre"]) for row in rows])
    for number in range(1, 1001):
        places = centres * number - 0.5
        if np.allclose(places, places.round(), atol=1e-6):
            return number
    return len(rows)
