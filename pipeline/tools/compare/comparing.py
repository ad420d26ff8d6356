"""The comparison of models that `compare` prints: what differs, and a paired test of each model with the first."""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass

from pipeline.core.environment import Environment, Paths
from pipeline.core.refusal import Refusal
from pipeline.inference.machine import Machine
from pipeline.prepare.progress import progress
from pipeline.tools.compare.differences import Differences, differences
from pipeline.tools.compare.models import ComparedModel, read
from pipeline.tools.compare.paired import EvaluationSplit, Paired, Scored, incomparability, paired


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`: what differs between the models, and the paired tests of each model with the first.

    `left_out` has a reason for each model that was not scored, and a reason if the test split cannot be used.
    """

    differences: Differences
    tests: tuple[Paired, ...]
    left_out: tuple[str, ...]


def compare(names: Sequence[str], paths: Paths, environment: Environment) -> Comparison:
    """Compare the models that `names` denote, each with the first. Raises Refusal if a name denotes no model."""
    with redirect_stdout(sys.stderr):  # stdout holds the comparison alone; warnings go to stderr
        models = [read(name, paths, environment) for name in names]
        tests, left_out = test(models, paths, Machine.set_up(environment))
    return Comparison(differences(models), tests, left_out)


def test(models: Sequence[ComparedModel], paths: Paths, machine: Machine) -> tuple[tuple[Paired, ...], tuple[str, ...]]:
    """Test each model against the first on the prepared test split. Return the tests, and the reasons for tests that could not be made.

    Of models with equal files, only the first is tested, because their predictions are equal.
    """
    first, comparable, left_out = models[0], list[ComparedModel](), list[str]()
    for model in reversed({model.digest: model for model in reversed(models)}.values()):
        if reason := incomparability(first.manifest.spec, model.manifest.spec):
            left_out.append(f"{model.name}: cannot be compared with {first.name}: {reason}")
        else:
            comparable.append(model)
    if len(comparable) == 1:
        return (), tuple(left_out)
    scored: dict[str, Scored] = {}
    try:
        with EvaluationSplit.of(first, paths, machine) as split, progress("compare", len(comparable), "models") as advance:
            for model in comparable:
                try:
                    scored[model.digest] = split.score(model)
                except Refusal as refusal:
                    left_out.append(str(refusal))
                advance()
    except Refusal as refusal:
        return (), (*left_out, str(refusal))
    baseline = scored.pop(first.digest, None)
    return tuple(paired(baseline, each) for each in scored.values()) if baseline else (), tuple(left_out)
