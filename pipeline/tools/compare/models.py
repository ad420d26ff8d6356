"""The models that a user names for a comparison: what is recorded about them, and paired tests of two of them.

A paired test is of their predictions for one test split, with the interval of the difference, exact for classes, else by a bootstrap. Several
models as one give the mean of their probabilities.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.core import files
from pipeline.core.environment import Environment, Paths
from pipeline.core.params import adding_lines, load
from pipeline.core.prepared import Prepared, PreparedRecord, read_record
from pipeline.core.raw_dataset import TEST, VALID
from pipeline.core.refusal import Refusal
from pipeline.core.section import formatted
from pipeline.core.seeding import generator
from pipeline.core.spec import Spec
from pipeline.core.yaml_document import Document
from pipeline.evaluate import stage
from pipeline.evaluate.params import EvaluateParams
from pipeline.evaluate.reports import recorded
from pipeline.evaluate.reports.metrics import SampleScores, accuracy_interval
from pipeline.inference import model_file, tensor_file
from pipeline.inference.machine import Machine
from pipeline.inference.model_file import Manifest
from pipeline.inference.networks import Model
from pipeline.inference.tensor_file import Tensors
from pipeline.runs import find, run_description
from pipeline.runs.mlflow.store import Store
from pipeline.runs.record import EVALUATE, Record, run_of_model

COMMIT_TAG = "mlflow.source.git.commit"


@dataclass(frozen=True)
class Facts:
    """The facts about a training that its run or a git revision records outside of the model file. Unknown facts are missing.

    `origin` names the run or revision, such as "run run-000001-...". `params` has the parameters of the sections `source` and `evaluate` by dotted
    key, `provenance` the facts of `provenance.facts`, `splits` the digest of each split, and `metrics` the metrics of the exported weights.
    """

    origin: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)
    splits: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ComparedModel:
    """A model to compare. `name` is the user's name for it, `digest` the SHA-256 of the model file, and `manifest` the file's metadata.

    `weights` are the tensors of the file, and `facts` what is recorded outside of it. The tensors are mapped from the file, so the system can
    drop them from memory at any time: the weights of many models take no more memory than there is to spare.
    """

    name: str
    digest: str
    manifest: Manifest
    weights: Tensors
    facts: Facts
    run: Record | None = None
    """The named run, or the newest one in this checkout with the same model file; None if there is none."""


def read(name: str, paths: Paths, environment: Environment) -> ComparedModel:
    """Return the model that `name` denotes: a model file, a run, a model in MLflow, a DVC experiment or a git revision.

    Its facts come from the run that `name` denotes, or else from the newest run in this checkout that has the same model file. If there is
    none, the facts of a name in MLflow come from MLflow, those of a path from `metrics/evaluate.json` if it has the scores of this file, and a
    revision has its commit alone. Nothing in the checkout is written. Raises Refusal if there is nothing with this name, or if its model file is missing or damaged.
    """
    with find.located(name, paths, environment) as found:
        weights, metadata = tensor_file.load(found.path, header_bytes=model_file.HEADER_BYTES)
        with model_file.refusing(found.path):
            manifest = Manifest.model_validate(metadata)  # the code of this checkout may not be able to build it
        digest = files.digest(found.path)
        run = found.run or run_of_model(environment.root, digest)
        if run:
            facts = of_run(run, manifest.step)
        elif found.commit:
            facts = Facts(f"revision {found.commit[:12]}", provenance={"git.commit": found.commit, "git.difference": "none"})
        else:
            facts = of_results(found.path, paths) if found.is_file else of_mlflow(name, environment)
        return ComparedModel(name, digest, manifest, weights, facts, run)


def have_same(split: str, first: ComparedModel, other: ComparedModel) -> bool:
    """Return True if both models were trained on the same data, or their runs recorded the same split. Without tracking, there is no record."""
    known = ((each.manifest.inputs.get("data"), each.facts.splits.get(split)) for each in (first, other))
    return any(one is not None and one == two for one, two in zip(*known, strict=True))


def of_results(model: Path, paths: Paths) -> Facts:
    """Return the scores in `metrics/evaluate.json` if they belong to the file `model`; otherwise return empty Facts."""
    try:
        return Facts(metrics=run_description.test_metrics(recorded.scores(paths.metrics / "evaluate.json", model)))
    except Refusal:
        return Facts()


def of_run(run: Record, step: int) -> Facts:
    """Return what `run` recorded. The metrics are those at `step`, the training step of the exported weights."""
    params, splits = dict[str, str](), dict[str, str]()
    for fields in run.begun:
        params |= section_of(fields["params"], "source") if fields["stage"] != EVALUATE else {}
        params |= section_of(fields["tags"], EVALUATE)
        splits |= {split_named(each["name"]): each["digest"] for each in fields.get("datasets", [])}
    provenance = {key: value for key, value in run.provenance.items() if isinstance(value, str)}
    return Facts(f"run {run.name}", params, provenance, splits, run.metrics(f"{TEST}/", f"{VALID}/", step=step))


def of_mlflow(name: str, environment: Environment) -> Facts:
    """Return what the run of a model in MLflow recorded, without its validation. Raises Refusal if MLflow does not answer."""
    store = Store(environment)
    with store.refusing(name, "could not read its run from MLflow", ": check MLFLOW_TRACKING_URI"), redirect_stdout(sys.stderr):
        run = store.client.get_run(str(find.find_logged(name, store).source_run_id))
    inputs = run.inputs.dataset_inputs if run.inputs else []
    splits = {split_named(each.dataset.name): json.loads(each.dataset.profile or "{}").get("digest", "") for each in inputs}
    params = section_of(run.data.params, "source") | section_of(run.data.tags, EVALUATE)
    metrics = {metric: value for metric, value in run.data.metrics.items() if metric.startswith(f"{TEST}/")}
    commit = {"git.commit": run.data.tags[COMMIT_TAG]} if COMMIT_TAG in run.data.tags else {}
    return Facts(f"run {run.info.run_name} in MLflow", params, commit, splits, metrics)


def section_of(params: Mapping[str, Any], section: str) -> dict[str, str]:
    return {key: formatted(value) for key, value in params.items() if key.startswith(f"{section}.")}


def split_named(dataset: str) -> str:
    """Return the split in the name of a dataset, such as "test" of "digits test"."""
    return dataset.rpartition(" ")[2]


def split_digests(record: PreparedRecord) -> dict[str, str]:
    """Return the digest of each split of prepared data, as a run records it."""
    return {name: files.digest_of([split.inputs_digest, split.targets_digest]) for name, split in record.splits.items()}


LEVEL = 0.95
"""The confidence level of all intervals. A difference is significant if its interval excludes 0."""
SEED = 1
RESAMPLES, FEWEST_RESAMPLES = 10_000, 1_000
MOST_DRAWS = 2 * 10**8
"""This limits the draws of all resamples together, and so the number of resamples for a large split."""


def exact_interval(only_first: int, only_second: int, num_samples: int, level: float) -> tuple[float, float]:
    """Return the interval (low, high) of the difference of two accuracies, that of the second model minus that of the first.

    `only_first` and `only_second` count the discordant samples, those that only one of the models predicted correctly. The interval is that
    of Clopper and Pearson (1934) for the share of the second model in them, at the confidence level `level`, such as 0.95, scaled to the
    difference over all `num_samples` samples. It excludes 0 exactly if the exact test of McNemar has a p-value below 1 - `level`.
    """
    discordant = only_first + only_second
    if discordant == 0:
        return 0.0, 0.0
    share = accuracy_interval(np.arange(discordant) < only_second, level)
    return (2 * share["low"] - 1) * discordant / num_samples, (2 * share["high"] - 1) * discordant / num_samples


def bootstrap(differences: NDArray[np.float64], weights: NDArray[np.float64], level: float) -> list[tuple[float, float]]:
    """Return the percentile interval (low, high) of each mean difference at the confidence level `level`, such as 0.95.

    `differences` (k, n) has the differences of k metrics for each of n samples, summed over the targets of the sample. `weights` (n,) is the
    number of these targets. The mean of a metric is the sum of its differences divided by the sum of the weights. Samples are drawn with
    replacement, the same ones for all metrics. The draws depend only on n, so that equal inputs give equal intervals on every machine.
    """
    count = differences.shape[1]
    draws, means = generator(SEED, "paired bootstrap"), []
    for _ in range(min(RESAMPLES, max(FEWEST_RESAMPLES, MOST_DRAWS // count))):
        drawn = draws.integers(0, count, size=count)
        means.append(differences[:, drawn].sum(axis=1) / weights[drawn].sum())
    tail = (1 - level) / 2
    return [(float(low), float(high)) for low, high in np.quantile(means, [tail, 1 - tail], axis=0).T]


@dataclass(frozen=True)
class MetricDifference:
    """A metric of two models on the same samples. `difference` is the second model's value minus the first model's.

    `low` and `high` are the bounds of its interval at the confidence level LEVEL.
    """

    metric: str
    first: float
    second: float
    low: float
    high: float

    @property
    def difference(self) -> float:
        return self.second - self.first

    @property
    def is_significant(self) -> bool:
        return self.low > 0 or self.high < 0


class Discordant(NamedTuple):
    """The numbers of samples that only the first model predicted correctly, and only the second."""

    only_first: int
    only_second: int


@dataclass(frozen=True)
class Paired:
    """The paired test of two models on `num_samples` samples.

    If each sample has one target, `discordant` counts the samples on which the models disagree, and the interval of the accuracy is the
    exact one. Otherwise `discordant` is None, the interval of the accuracy is a bootstrap, and the accuracy decides nothing. Predictions of
    numbers have none.
    """

    num_samples: int
    accuracy: MetricDifference | None
    loss: MetricDifference
    discordant: Discordant | None

    @property
    def differs_in_accuracy(self) -> bool:
        """Return True if the exact interval of the accuracy excludes 0; False if the samples have several targets."""
        return self.discordant is not None and self.accuracy is not None and self.accuracy.is_significant

    @property
    def is_significant(self) -> bool:
        """Return True if the accuracies differ by more than chance, or the losses do."""
        return self.differs_in_accuracy or self.loss.is_significant

    @property
    def second_is_worse(self) -> bool:
        """Return True if the second model is significantly worse: by its accuracy if that differs by more than chance, else by its loss."""
        return self.accuracy.difference < 0 if self.accuracy and self.differs_in_accuracy else self.loss.low > 0


class Member(NamedTuple):
    """A model of an ensemble. `name` is the user's name for it."""

    name: str
    model: Model
    manifest: Manifest


class MeanOfProbabilities(nn.Module):
    """Maps stored inputs to the logarithms of the mean of the members' softmax probabilities, computed in float32. Their softmax is this mean."""

    def __init__(self, members: Sequence[Model]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, inputs: Tensor) -> Tensor:
        logarithms = torch.stack([member(inputs).float().log_softmax(dim=-1) for member in self.members])
        # sorted: otherwise the order of the members would decide the last bits of the sum
        return logarithms.sort(dim=0).values.logsumexp(dim=0) - math.log(len(self.members))


def averaged(members: Sequence[Member]) -> Model:
    """Return the models as one; a single model as it is. Their order changes no bit of its outputs.

    Raises Refusal, which names the difference, unless all have the same task, classes, form of inputs and precision.
    """
    first, *others = members
    if not others:
        return first.model
    targets = first.manifest.spec.targets
    if not targets.averaged:
        raise Refusal(f"{first.name}: an ensemble averages the probabilities of classes, and the task {targets.kind} has no classes")
    for name, _, manifest in others:
        reason = incomparability(first.manifest.spec, manifest.spec)
        if not reason and manifest.precision != first.manifest.precision:
            precisions = f"it predicts in {manifest.precision}, and the other in {first.manifest.precision}"
            reason = f"{precisions}: train them with the same train.precision"
        if reason:
            raise Refusal(f"{name}: cannot be averaged with {first.name}: {reason}")
    return Model(MeanOfProbabilities([member.model for member in members]), nn.Identity()).eval()  # a new module is in training mode


class EvaluationSplit:
    """The prepared test split of the model `owner`, on which models are scored."""

    def __init__(self, owner: ComparedModel, paths: Paths, machine: Machine) -> None:
        """Open the prepared data, and read the section `evaluate` of params.yaml. Raises Refusal if one of them is missing or invalid."""
        self.owner, self.machine, self.paths = owner, machine, paths
        self.prepared, self.record = Prepared.open(paths.prepared), read_record(paths.prepared)
        if TEST not in self.record.splits:
            raise Refusal(f"{paths.prepared}: has no test split: set source.test above 0, and run `dvc repro`")
        self.document = Document.read(paths.params)
        settings = load(self.document, EvaluateParams).for_task(self.prepared.spec.targets.kind).evaluate
        # a paired test compares the predictions for the unmodified inputs
        self.params = EvaluateParams.model_construct(evaluate=settings.model_copy(update={"test_time_augmentation": "none"}))

    @cached_property
    def baseline(self) -> SampleScores:
        """The scores of the owner, which each test needs."""
        return self.score(self.owner)

    def test(self, model: ComparedModel) -> Paired:
        """Test the owner (first) and the model (second). Raises Refusal as `score` does."""
        return paired(self.baseline, self.score(model))

    def score(self, model: ComparedModel) -> SampleScores:
        """Predict this split with the model, as `evaluate` does, and return the scores of each sample.

        Raises Refusal if nothing shows that this is the model's test split (see `has_test_split_of`), if the model does not fit the data, or
        if the code of this checkout cannot build the model.
        """
        if not has_test_split_of(model, self.record):
            remedy = "run `dvc repro prepare` with the source parameters of its run, or train it on these data"
            raise Refusal(f"{model.name}: nothing shows that {self.paths.prepared} has its test split: {remedy}")
        stage.refuse_other_data(model.manifest.spec, self.prepared.spec, model=Path(model.name), data=self.paths.prepared)
        network = model_file.rebuild(model.weights, model.manifest, Path(model.name))
        with adding_lines(self.document):
            evaluator, _ = stage.judge(network, model.manifest, self.prepared, self.machine, self.params)
        return evaluator.sample_scores()


def has_test_split_of(model: ComparedModel, record: PreparedRecord) -> bool:
    """Return True if the prepared data of `record` has the test split of the model.

    It is the split on which the model was evaluated or, if no evaluation is recorded, that of the data on which it was trained.
    """
    known = model.facts.splits.get(TEST)
    return record.digest == model.manifest.inputs.get("data") if known is None else split_digests(record).get(TEST) == known


def incomparability(first: Spec, second: Spec) -> str | None:
    """Return why no test split can be that of both models, whose data `first` and `second` describe; None if they can have the same."""
    is_same_task = first.targets.kind == second.targets.kind and not first.targets.enlarged_if_other(second.targets)
    if is_same_task and first.inputs.reads_samples_of(second.inputs):
        return None
    one, other = (f"{spec.targets.kind} of {stage.shown(spec)}" for spec in (first, second))
    note = " in another form, such as another tokenizer or names that are not shown" if one == other else ""
    return f"one is for {one}, the other for {other}{note}"


def paired(one: SampleScores, other: SampleScores) -> Paired:
    """Test whether the second model differs from the first by more than chance. Both were scored on the same split.

    The result depends only on the predictions. Swapping the models only changes its signs.
    """
    assert np.array_equal(one.num_targets, other.num_targets)
    weights = one.num_targets.astype(np.float64)
    loss = "squared error" if one.correct is None else "loss"
    pairs: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {loss: (one.loss, other.loss)}
    if one.correct is not None and other.correct is not None:
        pairs = {"accuracy": (one.correct, other.correct), **pairs}
    differences = np.stack([after - before for before, after in pairs.values()]).astype(np.float64)
    if "accuracy" in pairs and (one.num_targets == 1).all():
        discordant = Discordant(int(np.count_nonzero(differences[0] < 0)), int(np.count_nonzero(differences[0] > 0)))
        intervals = [exact_interval(*discordant, len(weights), LEVEL), *bootstrap(differences[1:], weights, LEVEL)]
    else:
        discordant, intervals = None, bootstrap(differences, weights, LEVEL)
    found = {
        name: MetricDifference(name, float(before.sum() / weights.sum()), float(after.sum() / weights.sum()), low, high)
        for (name, (before, after)), (low, high) in zip(pairs.items(), intervals, strict=True)
    }
    return Paired(len(weights), found.get("accuracy"), found[loss], discordant)
