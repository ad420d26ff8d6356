"""The section on the result: the main score with its interval, and all scores of the test split and of the training."""

from collections.abc import Mapping
from typing import Any

from pipeline.core.refusal import counted
from pipeline.core.section import leaves
from pipeline.core.yaml_document import Document
from pipeline.evaluate.reports import recorded
from pipeline.tools.report.content import Cell, Headline, Number, Paragraph, Section, Table
from pipeline.tools.report.evidence import Evidence

PER_CLASS = "per_class"
SPLITS = ("test", "valid", "train")


def section(evidence: Evidence) -> Section:
    return Section("Result", (headline(evidence), *scores_table(evidence), Paragraph(origin(evidence))))


def key(evidence: Evidence, name: str) -> str:
    """Return the key of a test score for `Number`: the file of the scores and the dotted name; "" if no file has them."""
    return f"{evidence.evaluation.origin}#test.{name}" if evidence.evaluation.origin else ""


def headline(evidence: Evidence) -> Headline:
    scores = evidence.evaluation.scores
    name = next(name for name in recorded.HEADLINES if name in scores)
    interval, samples = scores.get(f"{name}_interval"), f"on {counted(scores['samples'], 'test sample', ',')}"
    if not interval:
        samples = f"on {counted(scores['tokens'], 'test token', ',')}" if "tokens" in scores else samples
        return Headline(spoken(name), Number(scores[name], key(evidence, name)), samples)
    share = confidence_level(evidence)
    kind = f"{100 * share:g}% interval" if share else "interval"
    note = f"{kind} {interval['low']:.4f} to {interval['high']:.4f} (Clopper-Pearson), {samples}{recorded.about_classes(scores)}"
    return Headline(spoken(name), Number(scores[name], key(evidence, name)), note)


def spoken(name: str) -> str:
    return name.replace("_", " ")


def confidence_level(evidence: Evidence) -> float | None:
    """Return `evaluate.confidence_level` of `params.yaml`, if the recorded interval has this level; else None."""
    from scipy.stats import binomtest  # late: takes a second to import

    scores = evidence.evaluation.scores
    settings = Document.read(evidence.paths.params).data.get("evaluate") if evidence.paths.params.is_file() else None
    level = settings.get("confidence_level") if isinstance(settings, Mapping) else None
    if not isinstance(level, float) or not 0 < level < 1:
        return None
    correct = round(scores["accuracy"] * scores["samples"])
    interval = binomtest(correct, scores["samples"]).proportion_ci(level, method="exact")
    same = abs(interval.low - scores["accuracy_interval"]["low"]) < 1e-9 and abs(interval.high - scores["accuracy_interval"]["high"]) < 1e-9
    return level if same else None


def scores_table(evidence: Evidence) -> list[Table]:
    """Return a table of the scores: a row for each score, and a column for each split. The scores of single classes are left out."""
    numbers: dict[str, dict[str, Cell]] = {}
    tested = {name: value for name, value in evidence.evaluation.scores.items() if name != PER_CLASS}
    for name, value in leaves(tested):
        numbers.setdefault(name, {})["test"] = Number(value, key(evidence, name))
    path = evidence.paths.metrics / "train.json"
    for split in ("valid", "train"):
        for name, value in section_of(evidence.trained, split).items():
            numbers.setdefault(name, {})[split] = Number(value, f"{path}#{split}.{name}")
    splits = [split for split in SPLITS if any(split in row for row in numbers.values())]
    rows = tuple((spoken(name).replace(".", ", "), *(row.get(split, "") for split in splits)) for name, row in numbers.items())
    tables = [Table(("score", *splits), rows)]
    if best := section_of(evidence.trained, "best"):
        metric = evidence.params.get("train.metric", "metric")
        step, value = (Number(best[name], f"{path}#best.{name}") for name in ("step", "value"))
        tables.append(Table(("best validation", "step", "value"), ((str(metric), step, value),)))
    return tables


def section_of(trained: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    found = (trained or {}).get(name, {})
    return found if isinstance(found, Mapping) else {}


def origin(evidence: Evidence) -> str:
    """Return a sentence about where the scores come from."""
    if not evidence.evaluation.origin:
        return "The test scores were computed for this report, because this checkout has none of this model."
    more = "; valid and train are the last report of the training." if evidence.trained else "."
    return f"The test scores are those of {evidence.evaluation.origin}{more}"
