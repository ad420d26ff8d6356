"""The comparison of models that `compare` prints: what differs, and a paired test of each model with the first, as text or Markdown."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from string import ascii_uppercase
from typing import NamedTuple

from pipeline.core.environment import Environment, Paths
from pipeline.core.raw_dataset import TEST, VALID
from pipeline.core.refusal import Refusal, counted, listed
from pipeline.core.untrusted import shown
from pipeline.inference.digits import rounded
from pipeline.inference.machine import Machine
from pipeline.prepare.progress import progress
from pipeline.runs import table
from pipeline.tools.compare.differences import SHORT, Differences, differences
from pipeline.tools.compare.models import ComparedModel, have_same, read
from pipeline.tools.compare.paired import LEVEL, EvaluationSplit, MetricDifference, Paired, Scored, incomparability, paired


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`: what differs between the models, and the paired tests of each model with the first.

    `left_out` has a reason for each model that was not scored, and a reason if the test split cannot be used.
    """

    differences: Differences
    tests: list[Paired]
    left_out: list[str]


def compare(names: Sequence[str], paths: Paths, environment: Environment, *, with_ensemble: bool = False) -> Comparison:
    """Compare the models that `names` denote, each with the first, and all of them as one, too, if `with_ensemble` is True.

    Raises Refusal if a name denotes no model, or if there are too many.
    """
    if len(names) > MOST_MODELS:
        raise Refusal(f"{len(names)} models are named: name {MOST_MODELS} at most")
    with redirect_stdout(sys.stderr):  # stdout holds the comparison alone; warnings go to stderr
        models = [read(name, paths, environment) for name in names]
        return Comparison(differences(models), *test(models, paths, Machine.set_up(environment), with_ensemble=with_ensemble))


def test(models: Sequence[ComparedModel], paths: Paths, machine: Machine, *, with_ensemble: bool) -> tuple[list[Paired], list[str]]:
    """Test each model against the first on the prepared test split. Return the tests, and the reasons for tests that could not be made.

    Of models with equal files, only the first is tested, because their predictions are equal.
    """
    first, comparable, left_out, scored = models[0], list[ComparedModel](), list[str](), dict[str, Scored]()
    for model in reversed({model.digest: model for model in reversed(models)}.values()):
        if reason := incomparability(first.manifest.spec, model.manifest.spec):
            left_out.append(f"{model.name}: cannot be compared with {first.name}: {reason}")
        else:
            comparable.append(model)
    if len(comparable) > 1:
        reports = progress("compare", len(comparable), "models")
        with noting(left_out), EvaluationSplit.of(first, paths, machine) as split, reports as advance:
            for model in comparable:
                with noting(left_out):
                    scored[model.digest] = split.score(model)
                advance()
            if with_ensemble and first.digest in scored and len(scored) > 1:
                with noting(left_out):
                    together = split.score_together([each.model for each in scored.values()])
                    scored[together.model.digest] = together
    if with_ensemble and (len(scored) < 2 or first.digest not in scored):
        left_out.append("an ensemble needs two different models that can be scored on one test split")
    baseline = scored.pop(first.digest, None)
    return [paired(baseline, each) for each in scored.values()] if baseline else [], left_out


@contextmanager
def noting(reasons: list[str]) -> Iterator[None]:
    """Within this context, add a Refusal to `reasons`, and go on after the context."""
    try:
        yield
    except Refusal as refusal:
        reasons.append(str(refusal))


MOST_MODELS = len(ascii_uppercase)
LONGEST_VALUE, LONGEST_REMARK = 60, 240
INTERVAL = "_interval/"
NOTHING = "-"
BOOTSTRAP, EXACT = "bootstrap", "exact"


class ComparisonTable(NamedTuple):
    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


Block = str | ComparisonTable


def rendered(found: Iterable[Block], *, markdown: bool = False) -> str:
    """Return the blocks as text with aligned columns, or as Markdown with tables."""
    return "\n\n".join(map(markdown_block if markdown else aligned, found))


def test_text(test: Paired, first: str, second: str) -> str:
    """Return a paired test as text. `first` and `second` are names for its models."""
    return rendered(test_blocks(test, first, second))


def blocks(comparison: Comparison) -> Iterator[Block]:
    """Yield the parts of the comparison: the label of each model, what differs, the recorded metrics, and the paired tests."""
    models = comparison.differences.models
    labels = {id(model): label for model, label in zip(models, ascii_uppercase, strict=False)}
    yield ComparisonTable("", ("", "model", "digest", "recorded by"), [(labels[id(model)], *description(model)) for model in models])
    found = comparison.differences
    if found.rows:
        yield differing_table(found, tuple(labels.values()))
    if len(models) == 2:
        yield found.conclusion
    else:
        yield from (f"A and {label}: {found.of_pair(at).conclusion}" for at, label in enumerate([*labels.values()][1:], start=1))
    yield from found.notes
    if rows := list(metric_rows(models)):
        gained = [f"{label} - A" for label in list(labels.values())[1:]]
        yield ComparisonTable("recorded metrics", ("", *labels.values(), *gained), rows)
        for split in (VALID, TEST):
            unlike = [labels[id(model)] for model in models if not have_same(split, models[0], model)]
            if unlike:
                others = listed(unlike, len(unlike))
                yield f"{split}: the samples of {others} differ from those of A, or no run records them, so their metrics are not comparable."
    letters = {model.digest: labels[id(model)] for model in reversed(models)}
    for test in comparison.tests:
        second = "+".join(sorted(letters[digest] for digest in test.second.digest.split("+")))
        yield from test_blocks(test, letters[test.first.digest], second)
    if len(comparison.tests) > 1:
        yield f"{len(comparison.tests)} tests: the more models are tested, the more likely one of them differs by chance."
    for reason in comparison.left_out:
        yield f"No paired test: {reason}"


def description(model: ComparedModel) -> tuple[str, str, str]:
    origin = model.facts.origin or "no run in this checkout"
    recorded_by = "this run" if origin == f"run {model.name}" else origin
    return shown(model.name, LONGEST_VALUE), model.digest[:SHORT], shown(recorded_by, LONGEST_VALUE)


def differing_table(differences: Differences, labels: tuple[str, ...]) -> ComparisonTable:
    rows = []
    for row in differences.rows:
        values = (NOTHING if value is None else shown(value, LONGEST_VALUE) for value in row.values)
        rows.append((row.kind, shown(row.name, LONGEST_VALUE), *values, shown(row.remark, LONGEST_REMARK)))
    return ComparisonTable("what differs", ("", "", *labels, ""), rows)


def metric_rows(models: Sequence[ComparedModel]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each recorded metric: its value for each model, with its interval if it has one, and the differences to the first."""
    found = [model.facts.metrics for model in models]
    for name in dict.fromkeys(name for metrics in found for name in metrics if INTERVAL not in name):
        first, *others = (metrics.get(name) for metrics in found)
        gained = (
            NOTHING if first is None or other is None else signed(other - first, count=is_count(first) and is_count(other))
            for other in others
        )
        yield (shown(name, LONGEST_VALUE), *(with_interval(name, metrics) for metrics in found), *gained)


def with_interval(name: str, metrics: Mapping[str, float]) -> str:
    """Return the value of a metric, such as `0.9806 (0.9604 to 0.9921)`, or NOTHING if there is none."""
    if name not in metrics:
        return NOTHING
    low, high = (metrics.get(f"{name}{INTERVAL}{bound}") for bound in ("low", "high"))
    value = number(metrics[name])
    return value if low is None or high is None else f"{value} ({number(low)} to {number(high)})"


def test_blocks(test: Paired, first: str, second: str) -> Iterator[Block]:
    """Yield the table of a paired test, and its result in words. `first` and `second` are the labels of its models."""
    title = f"paired test of {first} and {second}: predictions for the same {counted(test.num_samples, 'test sample')}"
    header = ("", first, second, f"{second} - {first}", f"{LEVEL:.0%} interval", "")
    of_accuracy = BOOTSTRAP if test.discordant is None else EXACT
    rows = [(*test_row(test.accuracy), of_accuracy)] if test.accuracy else []
    yield ComparisonTable(title, header, [*rows, (*test_row(test.loss), BOOTSTRAP)])
    yield sentence(test, first, second)


def test_row(metric: MetricDifference) -> tuple[str, ...]:
    interval = f"{signed(metric.low)} to {signed(metric.high)}"
    return metric.metric, number(metric.first), number(metric.second), signed(metric.difference), interval


def sentence(test: Paired, first: str, second: str) -> str:
    """Return the result of a paired test in words, with the numbers that support it."""
    loss = "higher" if test.loss.difference > 0 else "lower"
    if test.discordant is None or test.accuracy is None:
        differs = f"{second} has a significantly {loss} {test.loss.metric} than {first}"
        return f"{differs if test.loss.is_significant else 'No significant difference'}, by the interval of the {test.loss.metric}."
    comparative = "worse" if test.accuracy.difference < 0 else "better"
    differs = f"{second} is significantly {comparative} than {first}" if test.differs_in_accuracy else "No significant difference"
    only = test.discordant
    counts = counted(only.only_first, "sample"), counted(only.only_second, "sample")
    result = f"{differs} in accuracy: only {first} is correct for {counts[0]}, only {second} for {counts[1]}."
    return f"{result} The loss of {second} is significantly {loss}." if test.loss.is_significant else result


def is_count(value: float) -> bool:
    """Return True for 2, 3 and so on. 0 and 1 may be an accuracy."""
    return value.is_integer() and value > 1


def number(value: float) -> str:
    return f"{value:.0f}" if is_count(value) else rounded(value)


def signed(value: float, *, count: bool = False) -> str:
    if not value or count:
        return f"{value:+.0f}" if value else "0"
    return f"{'+' if value > 0 else ''}{rounded(value)}"


def aligned(block: Block) -> str:
    if isinstance(block, str):
        return block
    return "\n".join([*([block.title] if block.title else []), table.aligned([block.header, *block.rows])])


def markdown_block(block: Block) -> str:
    if isinstance(block, str):
        return escaped(block)
    header, *rows = ([*map(escaped, row)] for row in (block.header, *block.rows))
    return "\n".join([*([f"**{block.title}**", ""] if block.title else []), table.markdown(header, rows)])


def escaped(cell: str) -> str:
    """Escape what Markdown would take for a table's border, an HTML tag or emphasis."""
    for character in "\\|<*_`":
        cell = cell.replace(character, f"\\{character}")
    return cell
