"""`compare`: what differs between models in all that can affect a result, their recorded metrics, and a paired test of each model with the first."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from string import ascii_uppercase
from typing import Literal, NamedTuple

from pipeline.core import identity
from pipeline.core.environment import Environment, Paths
from pipeline.core.identity import DIGESTS
from pipeline.core.params import upgraded
from pipeline.core.raw_dataset import TEST, VALID
from pipeline.core.refusal import Refusal, counted, listed, rounded
from pipeline.core.section import flatten, formatted
from pipeline.core.untrusted import shown
from pipeline.inference.machine import Machine
from pipeline.prepare.progress import progress
from pipeline.runs import provenance
from pipeline.runs.table import aligned
from pipeline.tools.compare.models import LEVEL, ComparedModel, EvaluationSplit, Paired, have_same, incomparability, read
from pipeline.train.params import TrainParams

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


Kind = Literal["parameters", "data", "code", "lock", "hardware"]
Value = str | None
UNKNOWN = "unknown"
SHORT = 12
MOST_FILES = 3
CODE, SOURCE, MODEL = f"{DIGESTS['code']} of train", "source.", "model.name"
MACHINE_FACTS = ("python", "gpu", "driver", "image.digest")
"""Recorded facts about the machine that are compared in addition to its fingerprint. Host names are not compared: every container has its own."""
CAUSES: dict[Kind, str] = {"data": "the data", "code": "the code", "lock": DIGESTS["lock"], "hardware": "the machine"}


class DifferingRow(NamedTuple):
    """One property whose values differ. `values` has a text for each model: None if the model lacks the property, UNKNOWN if it is not recorded.

    `remark` adds detail, such as the files that differ between two commits; it may be "".
    """

    kind: Kind
    name: str
    values: tuple[Value, ...]
    remark: str = ""


def differences(models: Sequence[ComparedModel]) -> list[DifferingRow]:
    """Compare two or more models by their metadata and by what is recorded about them, the parameters first. No model is built or run.

    The values of a row are in the order of the models.
    """
    return [*parameters(models), *data(models), *code(models), *hardware(models)]


def conclusion(first: ComparedModel, second: ComparedModel) -> str:
    """Return a sentence that lists all causes of different scores, so that a reader does not attribute a score to one of several changes."""
    if first.digest == second.digest:
        return "Same bytes: the model files are identical."
    found = causes(first, second)
    if len(found) > 1:
        return f"A difference of the scores can come from {', '.join(found[:-1])} or {found[-1]}, and cannot be attributed to one of them."
    return f"Of what is recorded and can affect a result, {f'only {found[0]}' if found else 'nothing'} differs."


def causes(first: ComparedModel, second: ComparedModel) -> list[str]:
    """Return the possible causes of different scores: each parameter by its key, and every other kind of difference in words.

    Commits and uncommitted changes are a cause only if the code that `train` imported differs. That code includes the file of the
    architecture, so it usually differs if `model.name` differs. In this case it is not listed as a further cause, provided that the commits
    and the uncommitted changes are equal. Parameters of `source` affect a result only through the data, and are listed with the data.
    """
    rows = differences([first, second])
    source = [row.name for row in rows if row.name.startswith(SOURCE)]
    named = {**CAUSES, "data": f"{CAUSES['data']} ({', '.join(source)})" if source else CAUSES["data"]}
    changed = {row.name for row in rows if row.kind == "code"}
    is_known = all(model.facts.provenance.get("git.commit") for model in (first, second))
    is_of_model = changed == {CODE} and is_known and any(row.name == MODEL for row in rows)
    if CODE not in changed or is_of_model:
        rows = [row for row in rows if row.kind != "code"]
    return list(dict.fromkeys(row.name if row.kind == "parameters" else named[row.kind] for row in rows if row.name not in source))


def parameters(models: Sequence[ComparedModel]) -> Iterator[DifferingRow]:
    """Yield the parameters of the training, then those of `source` and `evaluate`, which are recorded outside of the model file.

    Keys that were added or moved since a file was written have the values that kept its result.
    """
    params = [upgraded(model.manifest.params, TrainParams)[0] for model in models]
    yield from differing("parameters", [flat(each) for each in params])
    for section in ("source", "evaluate"):
        found = [{key: value for key, value in model.facts.params.items() if key.startswith(f"{section}.")} for model in models]
        yield from differing("parameters", [each or None for each in found])


def data(models: Sequence[ComparedModel]) -> Iterator[DifferingRow]:
    """Yield the prepared data, and the file of `model.weights`."""
    for name in ("data", "weights"):
        yield from differing("data", [{DIGESTS[name]: short(model.manifest.inputs.get(name))} for model in models])


def code(models: Sequence[ComparedModel]) -> Iterator[DifferingRow]:
    """Yield the code that `train` imported, the commit, the uncommitted changes, and the digest of requirements.lock.

    Commits that differ only in params.yaml and results count as equal. So do uncommitted changes of these files. Parameters and results are
    compared separately.
    """
    yield from differing("code", [{CODE: short(model.manifest.inputs.get("code"))} for model in models])
    commits = [model.facts.provenance.get("git.commit", UNKNOWN) for model in models]
    known = [each for each in commits if provenance.shown(each) != UNKNOWN]
    changed = [provenance.code_between(known[0], each) for each in known[1:]]
    if any(changed) or None in changed:
        texts = (f"{counted(len(each), 'file')} changed: {listed(each, MOST_FILES)}" for each in changed if each)
        yield from differing("code", [{"commit": provenance.shown(each)} for each in commits], remark="; ".join(dict.fromkeys(texts)))
    changes = [model.facts.provenance.get("git.difference", UNKNOWN) for model in models]
    yield from differing("code", [{"uncommitted changes": provenance.changed_code(each)} for each in changes])
    yield from differing("lock", [{DIGESTS["lock"]: short(model.manifest.inputs.get("lock"))} for model in models])


def hardware(models: Sequence[ComparedModel]) -> Iterator[DifferingRow]:
    """Yield the machine properties that affect the bits of a result, the precision, the memory format, the micro-batch sizes after OOM, and `MACHINE_FACTS`."""
    properties = ("fingerprint", "precision", "channels_last", "switches")  # switches are the micro-batches after OOM
    machines = [flat(model.manifest.model_dump(mode="json", include={*properties})) for model in models]
    yield from differing("hardware", [{key.removeprefix("fingerprint."): value for key, value in each.items()} for each in machines])
    for name in MACHINE_FACTS:
        yield from differing("hardware", [{name: provenance.shown(model.facts.provenance.get(name, UNKNOWN))} for model in models])


def differing(kind: Kind, found: Sequence[Mapping[str, Value] | None], *, remark: str = "") -> Iterator[DifferingRow]:
    """Yield a row for each key whose known values differ.

    `found` has one mapping for each model, or None if nothing is recorded; all values of this model are then UNKNOWN.
    """
    unknown = {key: UNKNOWN for each in found if each for key in each}
    for key, values in identity.differences(*(unknown if each is None else each for each in found), missing=None):
        if len({*values} - {UNKNOWN}) > 1:
            yield DifferingRow(kind, key, values, remark)


def flat(nested: Mapping[str, object]) -> dict[str, Value]:
    return {key: formatted(value) for key, value in flatten(nested).items()}


def short(digest: str | None) -> Value:
    return digest and digest[:SHORT]
