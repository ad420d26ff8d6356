"""Paired tests of two models: predictions made anew from the model files on one test split."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from pipeline.comparison.models import ComparedModel
from pipeline.comparison.statistics import bootstrap, exact_interval
from pipeline.data import cached
from pipeline.data.prepared import Prepared, PreparedRecord, read_record
from pipeline.engine import model_file
from pipeline.io import files
from pipeline.params.evaluate import EvaluateParams
from pipeline.params.load import adding_lines, load
from pipeline.params.yaml_document import Document
from pipeline.paths import Paths
from pipeline.raw_dataset import TEST
from pipeline.refusal import Refusal
from pipeline.reports.evaluator import SampleScores
from pipeline.runtime.machine import Machine
from pipeline.spec import Spec
from pipeline.stages import evaluate

LEVEL = 0.95
"""The confidence level of all intervals. A difference is significant if its interval excludes 0."""


@dataclass(frozen=True)
class Scored:
    """A model, and its new predictions for the test split. `scores` has the keys of `metrics/evaluate.json`."""

    model: ComparedModel
    scores: Mapping[str, Any]
    samples: SampleScores


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
    """The paired test of the models `first` and `second` on `num_samples` samples.

    If each sample has one target, `discordant` counts the samples on which the models disagree, and the interval of the accuracy is the
    exact one. Otherwise `discordant` is None, the interval of the accuracy is a bootstrap, and the accuracy decides nothing.
    """

    first: ComparedModel
    second: ComparedModel
    num_samples: int
    accuracy: MetricDifference
    loss: MetricDifference
    discordant: Discordant | None

    @property
    def differs_in_accuracy(self) -> bool:
        """Return True if the exact interval of the accuracy excludes 0; False if the samples have several targets."""
        return self.discordant is not None and self.accuracy.is_significant

    @property
    def is_significant(self) -> bool:
        """Return True if the accuracies differ by more than chance, or the losses do."""
        return self.differs_in_accuracy or self.loss.is_significant

    @property
    def second_is_worse(self) -> bool:
        """Return True if the second model is significantly worse: by its accuracy if that differs by more than chance, else by its loss."""
        return self.accuracy.difference < 0 if self.differs_in_accuracy else self.loss.low > 0


class EvaluationSplit:
    """A prepared test split, on which models are scored."""

    def __init__(self, paths: Paths, machine: Machine, folder: Path) -> None:
        """Open the prepared data in `folder`, and read the section `evaluate` of params.yaml. Raises Refusal if one of them is missing or
        invalid.
        """
        self.machine, self.folder = machine, paths.prepared
        self.prepared = Prepared.open(folder)
        digest = test_digest(read_record(folder))
        if digest is None:
            raise Refusal(f"{paths.prepared}: has no test split: set source.test above 0, and run `dvc repro`")
        self.digest = digest
        self.document = Document.read(paths.params)
        params = load(self.document, EvaluateParams).for_task(self.prepared.spec.targets.kind)
        self.params = EvaluateParams.model_construct(
            evaluate=params.evaluate.model_copy(update={"test_time_augmentation": "none"})
        )  # a paired test compares the predictions for the unmodified inputs

    @classmethod
    @contextmanager
    def of(cls, model: ComparedModel, paths: Paths, machine: Machine) -> Iterator[Self]:
        """Give the test split of `model` within the block: that in `data/prepared/`, or an earlier one in DVC's cache.

        If neither is that of the model, give the one in `data/prepared/`. Raises Refusal for the same reasons as the constructor.
        """

        def fits(record: PreparedRecord) -> bool:
            if TEST in model.record.splits:
                return test_digest(record) == model.record.splits[TEST]
            return files.digest_of(record.model_dump(mode="json")) == model.manifest.inputs.get("data")

        with cached.located(paths.prepared, paths.top, fits) as folder:
            yield cls(paths, machine, folder)

    def score(self, model: ComparedModel) -> Scored:
        """Predict this split with the model, and return the scores.

        Raises Refusal if nothing shows that this is the model's test split (see `refuse_other_split`), if the model does not fit the data, or
        if the code of this checkout cannot build the model.
        """
        self.refuse_other_split(model)
        evaluate.refuse_other_data(model.manifest.spec, self.prepared.spec, model=Path(model.name), data=self.folder)
        network = model_file.rebuild(model.weights, model.manifest, Path(model.name))
        with adding_lines(self.document):
            evaluator, scores = evaluate.judge(network, model.manifest, self.prepared, self.machine, self.params)
        return Scored(model, scores, evaluator.sample_scores())

    def refuse_other_split(self, model: ComparedModel) -> None:
        """Raise Refusal unless the model was evaluated on this split or, if no evaluation is recorded, trained on this prepared data."""
        known = model.record.splits.get(TEST)
        if known is None and model.manifest.inputs.get("data") != self.prepared.digest:
            raise Refusal(
                f"{model.name}: was trained on other data than {self.folder}, and no recorded evaluation shows that its test split "
                "was the same: name its run, or check out its data with `dvc checkout`"
            )
        if known not in (None, self.digest):
            raise Refusal(
                f"{model.name}: was evaluated on another test split (digest {known[:12]}) than that of {self.folder} ({self.digest[:12]}): "
                "check out its data with `dvc checkout`, or evaluate it on this data"
            )


def test_digest(record: PreparedRecord) -> str | None:
    """Return the digest of the test split, as a run records it; None if there is no test split."""
    split = record.splits.get(TEST)
    return files.digest_of([split.inputs_digest, split.targets_digest]) if split else None


def incomparability(first: Spec, second: Spec) -> str | None:
    """Return why no test split can be that of both models, whose data `first` and `second` describe; None if they can have the same."""
    if task(first) != task(second):
        return f"the two models have different tasks: {task(first)}, and {task(second)}"
    one, other = evaluate.shown(first), evaluate.shown(second)
    both = f"{one}, and {other}" + ("" if one != other else " in another form, such as another tokenizer or names that are not shown")
    if first.targets != second.targets:
        return f"the two models have different {'classes' if first.targets.has_classes else 'targets'}: {both}"
    if not first.inputs.reads_samples_of(second.inputs):
        return f"the two models have different inputs: {both}"
    return None


def task(spec: Spec) -> str:
    """Return a text such as `classification of image inputs`."""
    return f"{spec.targets.kind} of {spec.inputs.kind} inputs"


def paired(first: Scored, second: Scored) -> Paired:
    """Test whether the second model differs from the first by more than chance. Both were scored on the same split.

    The result depends only on the predictions. Swapping the models only changes its signs.
    """
    one, other = first.samples, second.samples
    assert np.array_equal(one.num_targets, other.num_targets)
    weights = one.num_targets.astype(np.float64)
    differences = np.stack([other.correct - one.correct, other.loss - one.loss]).astype(np.float64)
    if (one.num_targets == 1).all():
        discordant = Discordant(int(np.count_nonzero(differences[0] < 0)), int(np.count_nonzero(differences[0] > 0)))
        intervals = [exact_interval(*discordant, len(weights), LEVEL), *bootstrap(differences[1:], weights, LEVEL)]
    else:
        discordant, intervals = None, bootstrap(differences, weights, LEVEL)
    correct, loss = (
        MetricDifference(name, float(before.sum() / weights.sum()), float(after.sum() / weights.sum()), low, high)
        for name, before, after, (low, high) in zip(
            ("accuracy", "loss"), (one.correct, one.loss), (other.correct, other.loss), intervals, strict=True
        )
    )
    return Paired(first.model, second.model, len(weights), correct, loss, discordant)
