"""`compare`: what differs between models, their recorded metrics, and a paired test of each model with the first."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from string import ascii_uppercase
from typing import NamedTuple

from pipeline.core.environment import Environment, Paths
from pipeline.core.raw_dataset import TEST, VALID
from pipeline.core.refusal import Refusal, counted, listed
from pipeline.core.untrusted import shown
from pipeline.inference.digits import rounded
from pipeline.inference.machine import Machine
from pipeline.prepare.progress import progress
from pipeline.runs.table import aligned
from pipeline.tools.compare.differences import SHORT, Differences, differences
from pipeline.tools.compare.models import ComparedModel, have_same, read
from pipeline.tools.compare.paired import LEVEL, EvaluationSplit, Paired, Scored, incomparability, paired

MOST_MODELS = len(ascii_uppercase)
LONGEST_VALUE, LONGEST_REMARK = 60, 240
INTERVAL = "_interval/"
NOTHING = "-"


def run(first: str, others: list[str], ensemble: bool) -> None:
    """Print what differs between the models, their metrics, and a paired test of each with the first. Nothing in the checkout is written.

    `first` and `others` name the models; see `models.read`. With `ensemble`, also test all models as one.
    """
    print("\n\n".join(sections(compare([first, *others], Paths(), Environment.read(), with_ensemble=ensemble))), flush=True)


class Comparison(NamedTuple):
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
        with noting(left_out), reports as advance:
            split = EvaluationSplit(first, paths, machine)
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


def sections(comparison: Comparison) -> Iterator[str]:
    """Yield the parts of the comparison: the label of each model, what differs, the recorded metrics, and the paired tests."""
    found, tests, left_out = comparison
    labels = dict(zip(ascii_uppercase, found.models, strict=False))
    _, *others = labels
    yield aligned([("", "model", "digest", "recorded by"), *((label, *description(model)) for label, model in labels.items())])
    if found.rows:
        rows = [("", "", *labels, "")]
        for row in found.rows:
            values = (NOTHING if value is None else shown(value, LONGEST_VALUE) for value in row.values)
            rows.append((row.kind, shown(row.name, LONGEST_VALUE), *values, shown(row.remark, LONGEST_REMARK)))
        yield f"what differs\n{aligned(rows)}"
    if len(labels) == 2:
        yield found.conclusion
    else:
        yield from (f"A and {label}: {differences([labels['A'], labels[label]]).conclusion}" for label in others)
    yield from found.notes
    if metrics := list(metric_rows(found.models)):
        yield f"recorded metrics\n{aligned([('', *labels, *(f'{label} - A' for label in others)), *metrics])}"
        for split in (VALID, TEST):
            if unlike := [label for label in others if not have_same(split, labels["A"], labels[label])]:
                differ = f"{split}: the samples of {listed(unlike, len(unlike))} differ from those of A"
                yield f"{differ}, or no run records them, so their metrics are not comparable."
    letters = {model.digest: label for label, model in reversed(labels.items())}
    for test in tests:
        yield from test_sections(
            test, letters[test.first.digest], "+".join(sorted(letters[each] for each in test.second.digest.split("+")))
        )
    if len(tests) > 1:
        yield f"{len(tests)} tests: the more models are tested, the more likely one of them differs by chance."
    yield from (f"No paired test: {reason}" for reason in left_out)


def description(model: ComparedModel) -> tuple[str, str, str]:
    origin = model.facts.origin or "no run in this checkout"
    recorded_by = "this run" if origin == f"run {model.name}" else origin
    return shown(model.name, LONGEST_VALUE), model.digest[:SHORT], shown(recorded_by, LONGEST_VALUE)


def metric_rows(models: Sequence[ComparedModel]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each recorded metric: its value for each model, with its interval if it has one, and the differences to the first."""
    found = [model.facts.metrics for model in models]
    for name in dict.fromkeys(name for metrics in found for name in metrics if INTERVAL not in name):
        first, *others = (metrics.get(name) for metrics in found)
        gained = (NOTHING if first is None or other is None else signed(other - first) for other in others)
        yield (shown(name, LONGEST_VALUE), *(with_interval(name, metrics) for metrics in found), *gained)


def with_interval(name: str, metrics: Mapping[str, float]) -> str:
    """Return the value of a metric, such as `0.9806 (0.9604 to 0.9921)`, or NOTHING if there is none."""
    if name not in metrics:
        return NOTHING
    ends = [metrics[end] for bound in ("low", "high") if (end := f"{name}{INTERVAL}{bound}") in metrics]
    return number(metrics[name]) + (f" ({' to '.join(map(number, ends))})" if len(ends) == 2 else "")


def test_sections(test: Paired, first: str, second: str) -> Iterator[str]:
    """Yield the table of a paired test, and its result in words. `first` and `second` are the labels of its models."""
    rows = [("", first, second, f"{second} - {first}", f"{LEVEL:.0%} interval", "")]
    for metric in filter(None, (test.accuracy, test.loss)):
        method = "exact" if metric is test.accuracy and test.discordant else "bootstrap"
        interval = f"{signed(metric.low)} to {signed(metric.high)}"
        rows.append((metric.metric, number(metric.first), number(metric.second), signed(metric.difference), interval, method))
    yield f"paired test of {first} and {second}: predictions for the same {counted(test.num_samples, 'test sample')}\n{aligned(rows)}"
    yield sentence(test, first, second)


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


def number(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() and value > 1 else rounded(value)  # 0 and 1 may be an accuracy


def signed(value: float) -> str:
    if value.is_integer():
        return f"{value:+.0f}" if value else "0"
    return f"{'+' if value > 0 else ''}{rounded(value)}"
