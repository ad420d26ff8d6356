"""The sections on what was measured: the scores, the curves and the cost of the training, the errors of a classifier, its calibration, and the run before."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.core.identity import DIGESTS, differences
from pipeline.core.prepared import Prepared, Split
from pipeline.core.raw_dataset import TEST
from pipeline.core.refusal import counted
from pipeline.core.section import leaves
from pipeline.core.untrusted import shown
from pipeline.core.yaml_document import Document
from pipeline.evaluate.reports import recorded
from pipeline.evaluate.reports.metrics import accuracy_interval
from pipeline.evaluate.reports.recorded import Row
from pipeline.inference.digits import rounded
from pipeline.runs import journal
from pipeline.runs.record import Cost, Record
from pipeline.runs.terminal import duration
from pipeline.tools.compare.comparing import signed
from pipeline.tools.compare.differences import Value, as_one, differing, flat
from pipeline.tools.report import figures
from pipeline.tools.report.evidence import Evidence
from pipeline.tools.report.page import Block, Cell, Confusion, Figures, Headline, Number, PageSection, Pairs, Table

SPLITS = ("test", "valid", "train")
ROWS = 4096
"""Rows of tokens that are counted at a time."""


def result(evidence: Evidence) -> PageSection:
    return PageSection("Result", (headline(evidence), Pairs(tuple(beside_headline(evidence)))))


def beside_headline(evidence: Evidence) -> Iterator[tuple[str, Cell]]:
    """Yield the baseline of the main score, and other scores that show what it hides."""
    scores, targets = evidence.evaluation.scores, evidence.manifest.spec.targets
    for name, what in recorded.BASELINES.items():
        if name in scores:
            yield f"baseline: {what.removeprefix('always guessing ')}", Number(scores[name], key(evidence, name))
    if "perplexity" in scores and targets.per_token:
        if evidence.prepared:
            yield "baseline: frequencies of tokens", Number(unigram_perplexity(evidence.prepared))
        yield "baseline: a uniform guess", Number(evidence.manifest.spec.num_outputs)
    main = recorded.main_score(scores)
    for name in ("chrf", "bleu", "loss", "macro_f1", "micro_f1", "exact_match", "bits_per_character", "mae", "r2"):
        if name in scores and name != main:
            yield spoken(name), Number(scores[name], key(evidence, name))
    if worst := ranked_classes(scores):
        name, measured = worst[0]
        yield f"lowest F1 ({recorded.PARTS[str(recorded.parts(scores))]} {shown(name, recorded.LONGEST_CLASS)})", Number(measured["f1"])


def unigram_perplexity(prepared: Prepared) -> float:
    """Return the perplexity, on the test split, of predicting each token by its frequency in train, with one added to each count."""
    num_tokens, pad = prepared.spec.num_outputs, prepared.spec.inputs.pad

    def count(split: Split) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        blocks = np.array_split(split.inputs, max(1, len(split) // ROWS))  # np.bincount copies its input to int64
        counts = np.sum([np.bincount(block[block != pad], minlength=num_tokens) for block in blocks], axis=0)
        return np.delete(counts, pad) if pad >= 0 else counts

    train, test = count(prepared.train) + 1, count(prepared.split(TEST))
    return math.exp(-float(test @ np.log(train / train.sum())) / int(test.sum()))


def key(evidence: Evidence, name: str) -> str:
    """Return the key of a test score for `Number`: the file of the scores and the dotted name; "" if no file has them."""
    return f"{evidence.evaluation.origin}#test.{name}" if evidence.evaluation.origin else ""


def headline(evidence: Evidence) -> Headline:
    scores = evidence.evaluation.scores
    name = recorded.main_score(scores)
    counts = ("tokens", "test token") if "tokens" in scores and name != "exact_match" else ("samples", "test sample")
    note = f"on {counted(scores[counts[0]], counts[1], ',')}"
    if interval := scores.get(f"{name}_interval"):
        share = confidence_level(evidence) if name == "accuracy" else None
        kind = f"{100 * share:g}% interval" if share else "interval"
        method = "Clopper-Pearson" if name in ("accuracy", "exact_match") else "bootstrap"
        note = f"{kind} {rounded(interval['low'])} to {rounded(interval['high'])} ({method}), {note}"
    return Headline(spoken(name), Number(scores[name], key(evidence, name)), note)


def spoken(name: str) -> str:
    return name.replace("_", " ")


def confidence_level(evidence: Evidence) -> float | None:
    """Return `evaluate.confidence_level` of `params.yaml`, if the recorded interval has this level; else None."""
    scores = evidence.evaluation.scores
    settings = Document.read(evidence.paths.params).data.get("evaluate") if evidence.paths.params.is_file() else None
    level = settings.get("confidence_level") if isinstance(settings, Mapping) else None
    if not isinstance(level, float) or not 0 < level < 1:
        return None
    is_correct = np.arange(scores["samples"]) < round(scores["accuracy"] * scores["samples"])
    interval = accuracy_interval(is_correct, level)
    return level if all(abs(interval[end] - scores["accuracy_interval"][end]) < 1e-9 for end in interval) else None


def all_scores(evidence: Evidence) -> PageSection:
    """Return the section with a table of the scores: a row for each score, and a column for each split. The scores of single classes are left out."""
    numbers: dict[str, dict[str, Cell]] = defaultdict(dict)
    for name, value in leaves(
        {name: value for name, value in evidence.evaluation.scores.items() if name not in (*recorded.PARTS, recorded.POSITIVE)}
    ):
        numbers[name]["test"] = Number(value, key(evidence, name))
    for split in SPLITS[1:]:
        for name, number in of_training(evidence, split):
            numbers[name][split] = number
    rows = tuple((spoken(name).replace(".", ", "), *(row.get(split, "") for split in SPLITS)) for name, row in numbers.items())
    tables = [Table(("score", *SPLITS), rows).without_empty_columns()]
    if best := section_of(evidence.trained, "best"):
        path, metric = evidence.paths.metrics / "train.json", evidence.params.get("train.metric", "metric")
        step, value = (Number(best[name], f"{path}#best.{name}") for name in ("step", "value"))
        tables.append(Table(("best validation", "step", "value"), ((str(metric), step, value),)))
    return PageSection("All scores", (*tables, origin(evidence)))


def of_training(evidence: Evidence, split: str) -> Iterator[tuple[str, Number]]:
    """Yield the scores of `split` that the training reported after the step whose weights the model file has, if there was such a report.

    They are in `metrics/train.json`. An earlier version wrote those of the last step there; a run has only its history.
    """
    step, trained = evidence.manifest.step, evidence.trained or {}
    if trained.get("steps") == step or "last" in trained:
        for name, value in section_of(trained, split).items():
            yield name, Number(value, f"{evidence.paths.metrics / 'train.json'}#{split}.{name}")
        return
    for row in evidence.history or ():
        if int(float(str(row["step"]))) == step:
            for column, cell in row.items():
                if column.startswith(f"{split}/") and (text := str(cell)) not in ("", "None"):
                    yield column.partition("/")[2], Number(int(text) if text.isdigit() else float(text))


def section_of(trained: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    found = (trained or {}).get(name, {})
    return found if isinstance(found, Mapping) else {}


def origin(evidence: Evidence) -> str:
    """Return a sentence about where the scores come from."""
    if not evidence.evaluation.origin:
        return "The test scores were computed for this report, because this checkout has none of this model."
    step, has_more = evidence.manifest.step, any(of_training(evidence, "train"))
    more = f"; those of the training are from step {step}, whose weights the model has." if has_more else "."
    return f"The test scores are those of {evidence.evaluation.origin}{more}"


def training(evidence: Evidence) -> PageSection | None:
    """Return the curves; None if this checkout has neither the history nor the journal of the training."""
    if not evidence.history:
        return None
    metric = shown_metric(evidence.history, str(evidence.params.get("train.metric", "")))
    found = figures.of_training(evidence.history, metric, evidence.manifest.spec.targets.loss_unit)
    return PageSection("Training", (Figures(found),)) if found else None


def shown_metric(rows: Sequence[Row], metric: str) -> str:
    """Return the name, without split, of the metric to plot beside the loss: `train.metric`; if this is the loss, the main score.

    Return "" if the history has no other metric than the loss.
    """
    name = metric.partition("/")[2]
    candidates = (name, *recorded.HEADLINES)
    return next((each for each in candidates if each not in ("", "loss") and any(f"valid/{each}" in row for row in rows)), "")


def cost(evidence: Evidence) -> PageSection | None:
    """Return the time, the energy and the memory that the journal recorded; None without a journal of the training."""
    if not evidence.run or not evidence.run.cost:
        return None
    note = "Measured by the journal of the run: the same training, run again, has the same result at another cost."
    return PageSection("Cost", (Pairs(cost_facts(evidence.run.cost)), note))


def cost_facts(measured: Cost) -> tuple[tuple[str, str | Number], ...]:
    sessions = f", in {measured.num_sessions} sessions" if measured.num_sessions > 1 else ""
    time = duration(measured.time_s) if measured.time_s >= 60 else f"{measured.time_s:.1f} s"
    rate, energy = measured.samples_per_second, measured.energy_wh
    return (
        ("training time", time + sessions),
        *(() if rate is None else [("samples per second (median)", f"{rate:,.0f}")]),
        *(() if energy is None else [("energy of the GPUs", f"{energy:,.3g} Wh")]),
        *((f"peak GPU memory, {name.removesuffix('_megabytes')}", f"{size:,.0f} MB") for name, size in measured.memory_megabytes.items()),
    )


MOST_CLASSES = 24
"""With more classes, the most frequent confusions are listed instead of a matrix."""
MOST_PAIRS, MOST_WORST = 15, 12

Rows = Sequence[Mapping[str, Any]]


def errors(evidence: Evidence) -> PageSection | None:
    rows = evidence.evaluation.predictions
    matrix = [confusions(rows, evidence.manifest.spec.targets.output_names)] if rows else []
    blocks: list[Block] = [*matrix, *([worst] if (worst := worst_classes(evidence)) else [])]
    return PageSection("Errors", tuple(blocks)) if blocks else None


def confusions(rows: Rows, classes: tuple[str, ...]) -> Block:
    """Return the confusion matrix or, with many classes, the most frequent confusions."""
    pairs = Counter((row["actual"], row["predicted"]) for row in rows)
    if len(classes) <= MOST_CLASSES:
        counts: tuple[tuple[Cell, ...], ...] = tuple(
            (actual, *(Number(pairs[actual, predicted]) for predicted in classes)) for actual in classes
        )
        return Confusion(("actual \\ predicted", *classes), counts)
    wrong = [(pair, count) for pair, count in pairs.most_common() if pair[0] != pair[1]][:MOST_PAIRS]
    return Table(("actual", "predicted", "samples"), tuple((*pair, Number(count)) for pair, count in wrong), "Most frequent confusions")


def worst_classes(evidence: Evidence) -> Table | None:
    """Return the classes or labels with the lowest F1, the worst first."""
    scores_of_all = evidence.evaluation.scores
    ranked, parts = ranked_classes(scores_of_all), recorded.parts(scores_of_all)
    if not ranked or parts is None:
        return None
    several = {"per_class": "classes", "per_label": "labels"}[parts]
    worst = ranked[:MOST_WORST]
    columns = tuple(dict.fromkeys(column for _, scores in worst for column in scores))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name, *(Number(scores[column], key(evidence, f"{parts}.{name}.{column}")) if column in scores else "" for column in columns))
        for name, scores in worst
    )
    caption = (
        f"The {len(worst)} worst of {len(ranked):,} {several} by F1"
        if len(ranked) > len(worst)
        else f"{several.capitalize()}, the worst by F1 first"
    )
    return Table((recorded.PARTS[parts], *columns), rows, caption)


def ranked_classes(scores: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the scores of each class, the class with the lowest F1 first, and those without samples last; [] if the task has no classes or labels."""
    return sorted(
        scores.get(recorded.parts(scores) or "", {}).items(), key=lambda item: (not item[1].get("support", 1), float(item[1]["f1"]))
    )


def calibration(evidence: Evidence) -> PageSection | None:
    """Return the reliability diagram and the expected calibration error, from the table of the evaluation; None for tasks without."""
    rows, name = evidence.evaluation.table("reliability.csv"), "expected_calibration_error"
    if not rows or name not in evidence.evaluation.scores:  # an earlier task, run without DVC, may have left the table
        return None
    facts = Pairs((("expected calibration error", Number(evidence.evaluation.scores[name], key(evidence, name))),))
    meaning = "A bin of predictions on the diagonal is right as often as its mean confidence says; below it, the model is too confident."
    return PageSection("Calibration", (Figures((figures.reliability(rows),)), facts, meaning))


BEFORE = "Compared with the run before"
COMPARED = ("exact_match", "chrf", *recorded.HEADLINES, "macro_f1")
"""The test scores whose change is shown."""
INPUTS = {**DIGESTS, "fingerprint": "machine"}
MOST_CHANGED, LONGEST_VALUE = 6, 24
NOTHING = "-"


def before(evidence: Evidence) -> PageSection | None:
    """Return what differs from the previous run of the same architecture and data; None without a journal of the training."""
    run, before = evidence.run, evidence.before
    if run is None or not run.last.get("subject"):  # the line of a damaged journal is missing
        return None
    if before is None:
        return PageSection(BEFORE, (f"This checkout has no earlier run of {run.last['subject']}.",))
    changed = list(parameter_rows(before, run))
    more = [f"{len(changed) - MOST_CHANGED} more parameters differ."] if len(changed) > MOST_CHANGED else []
    table = Table(("", "before", "now", "change"), (*score_rows(before, evidence), *changed[:MOST_CHANGED]))
    names = " ".join(journal.short_name(each.name) for each in (before, run))
    command = f"To test whether the change is more than chance: python -m pipeline compare {names}"
    return PageSection(BEFORE, (table, *more, also_different(before, run), command))


def score_rows(before: Record, evidence: Evidence) -> Iterator[tuple[Cell, ...]]:
    earlier, scores = before.metrics("test/"), evidence.evaluation.scores
    for name in COMPARED:
        if name in scores and (value := earlier.get(f"test/{name}")) is not None:
            yield spoken(name), Number(value), Number(scores[name], key(evidence, name)), signed(scores[name] - value)


def parameter_rows(before: Record, run: Record) -> Iterator[tuple[Cell, ...]]:
    params = [params_of(each) for each in (before, run)]
    for row in differing("parameters", [as_one(each, params) for each in params]):
        yield row.name, *(NOTHING if value is None else shown(value, LONGEST_VALUE) for value in row.values), ""


def params_of(run: Record) -> dict[str, Value]:
    """Return the parameters of a run by dotted key. Those of the evaluation are tags."""
    tags = {name: value for fields in run.begun for name, value in fields["tags"].items() if name.startswith("evaluate.")}
    return {**flat(run.last["params"]), **tags}


def also_different(before: Record, run: Record) -> str:
    """Return a sentence on what else differs and can affect the result: data, code, lock file and machine."""
    first, second = (each.provenance.get("inputs", {}) for each in (before, run))
    if not (first and second):
        return "Whether data, code and machine differ is not recorded."
    names = [INPUTS[name] for name, _ in differences(first, second) if name in INPUTS]
    return f"Also different: {', '.join(names)}." if names else "Data, code, requirements.lock and machine are the same."
