"""`compare`: what differs between models, their recorded metrics, and a paired test of each model with the first."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from string import ascii_uppercase

from pipeline.core.environment import Environment, Paths
from pipeline.core.raw_dataset import TEST, VALID
from pipeline.core.refusal import Refusal, counted, listed
from pipeline.core.untrusted import shown
from pipeline.inference.digits import rounded
from pipeline.inference.machine import Machine
from pipeline.prepare.progress import progress
from pipeline.runs.table import aligned
from pipeline.tools.compare.differences import SHORT, conclusion, differences
from pipeline.tools.compare.models import ComparedModel, have_same, read
from pipeline.tools.compare.paired import LEVEL, EvaluationSplit, Paired, incomparability

LONGEST_VALUE, LONGEST_REMARK = 60, 240
INTERVAL = "_interval/"
NOTHING = "-"


def run(first: str, others: list[str]) -> None:
    """Print what differs between the models, their metrics, and a paired test of each with the first. Nothing in the checkout is written.

    `first` and `others` name the models; see `models.read`. Raises Refusal if a name denotes no model, or if there are too many.
    """
    paths, environment = Paths(), Environment.read()
    if 1 + len(others) > len(ascii_uppercase):
        raise Refusal(f"{1 + len(others)} models are named: name {len(ascii_uppercase)} at most")
    with redirect_stdout(sys.stderr):  # stdout holds the comparison alone; warnings go to stderr
        models = [read(name, paths, environment) for name in (first, *others)]
        tests = paired_tests(models, paths, Machine.set_up(environment))
    print("\n\n".join(sections(models, tests)), flush=True)


def paired_tests(models: Sequence[ComparedModel], paths: Paths, machine: Machine) -> list[Paired | str]:
    """Test each further model against the first on the prepared test split. Return a test for each, or the reason why there is none."""
    first, *others = models
    split, found = None, list[Paired | str]()
    with progress("compare", len(others), "models") as advance:
        for model in advance.each(others, lambda _: 1):
            if reason := incomparability(first.manifest.spec, model.manifest.spec):
                found.append(f"{model.name}: cannot be compared with {first.name}: {reason}")
                continue
            try:
                split = split or EvaluationSplit(first, paths, machine)
                found.append(split.test(model))
            except Refusal as refusal:
                found.append(str(refusal))
    return found


def sections(models: Sequence[ComparedModel], tests: Sequence[Paired | str]) -> Iterator[str]:
    """Yield the parts of the comparison: the label of each model, what differs, the recorded metrics, and the paired tests."""
    labels = {ascii_uppercase[number]: model for number, model in enumerate(models)}
    first, *others = labels
    yield aligned([("", "model", "digest", "recorded by"), *((label, *description(model)) for label, model in labels.items())])
    if differing := differences(models):
        rows = [("", "", *labels, "")]
        for row in differing:
            values = (NOTHING if value is None else shown(value, LONGEST_VALUE) for value in row.values)
            rows.append((row.kind, shown(row.name, LONGEST_VALUE), *values, shown(row.remark, LONGEST_REMARK)))
        yield f"what differs\n{aligned(rows)}"
    yield from (f"{first} and {label}: {conclusion(labels[first], labels[label])}" for label in others)
    if unrecorded := [label for label, model in labels.items() if not model.facts.params]:
        named = listed(unrecorded, len(unrecorded))
        yield f"This checkout has no run of {named}: what only a run records is unknown, such as the source parameters."
    if metrics := list(metric_rows(models)):
        yield f"recorded metrics\n{aligned([('', *labels, *(f'{label} - {first}' for label in others)), *metrics])}"
        for split in (VALID, TEST):
            if unlike := [label for label in others if not have_same(split, labels[first], labels[label])]:
                differ = f"{split}: the samples of {listed(unlike, len(unlike))} differ from those of {first}"
                yield f"{differ}, or no run records them, so their metrics are not comparable."
    for label, test in zip(others, tests, strict=True):
        if isinstance(test, Paired):
            yield from test_sections(test, first, label)
    if len(tests) > 1:
        yield f"{len(tests)} tests: the more models are tested, the more likely one of them differs by chance."
    yield from (f"No paired test: {reason}" for reason in dict.fromkeys(test for test in tests if isinstance(test, str)))


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
    direction = "higher" if test.loss.difference > 0 else "lower"
    loss = f"The {test.loss.metric} of {second} is significantly {direction}." if test.loss.is_significant else ""
    if test.discordant is None or test.accuracy is None:
        return loss or f"No significant difference in {test.loss.metric}."
    comparative = "worse" if test.accuracy.difference < 0 else "better"
    differs = f"{second} is significantly {comparative} than {first}" if test.differs_in_accuracy else "No significant difference"
    only_first, only_second = (counted(each, "sample") for each in test.discordant)
    return f"{differs} in accuracy: only {first} is correct for {only_first}, only {second} for {only_second}. {loss}".rstrip()


def number(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() and value > 1 else rounded(value)  # 0 and 1 may be an accuracy


def signed(value: float) -> str:
    if value.is_integer():
        return f"{value:+.0f}" if value else "0"
    return f"{'+' if value > 0 else ''}{rounded(value)}"
