"""Measures the metrics of `pipeline/inference/metrics/` over a whole split: parts of it on the device, batch by batch, and the value on the host at the end."""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import numpy as np
from numpy.typing import NDArray

from pipeline.core.refusal import Refusal
from pipeline.core.registry import CORRECT, missing_method
from pipeline.core.spec import Direction, Spec, Targets
from pipeline.inference import scores
from pipeline.inference.batch import IGNORED
from pipeline.inference.params import METRICS
from pipeline.inference.scores import Floats, Integers

HALF = 0.5
if TYPE_CHECKING:
    import torch
    from torch import Tensor

Exchange = Callable[["Tensor"], "Tensor"]
MOST_BYTES = 2**32
"""The largest size of all rows that a metric keeps on the device."""
TRIED, TRIED_BATCH, TRIED_TOKENS = 12, 5, 3
"""The number of samples with which a metric is tried, of a batch of them, and of the tokens of a sample of text."""


OTHER_VALUE = "gives another value in a second call with equal arguments: compute it from them alone, and keep nothing between calls"


class Metric:
    """A number over a split. `pipeline/inference/metrics/NAME.py` has a subclass called `Metric`, which the parameters call NAME.

    `part` is called for each batch, and `value` once, with all parts: their sum, or with `keeps_rows` all their rows, in the order of the split. So the
    value is that of the whole split, never a mean over batches.
    """

    direction: ClassVar[Direction]
    """The better direction: "max" or "min"."""
    keeps_rows: ClassVar[bool] = False
    """False if a part is a tensor of whole numbers, of the same shape for all batches, to be added up. True if it has a row of float32 for each sample."""
    forms: ClassVar[tuple[str, ...]] = ("class",)
    """The forms of targets for which the metric exists. For "labels", `targets` are 0 or 1 (n, labels), and the outputs are their logits."""

    positive: int = 1
    """The number of the positive class, if there are two: that of `source.positive_class`."""
    of_positive: ClassVar[bool] = False
    """True if the metric is that of the positive class, if there are two."""

    def __init__(self, num_outputs: int) -> None:
        self.num_outputs = num_outputs

    @property
    def measure(self) -> object:
        """Return what computes a part: metrics for which it is equal share the parts. `part` of another class may depend on more than `num_outputs`."""
        part = type(self).part
        return (part, self.num_outputs, self.keeps_rows) if part in {FromCounts.part, FromProbabilities.part} else id(self)

    @classmethod
    def refuse_misfit(cls, targets: type[Targets] | Targets, num_outputs: int | None, key: str) -> None:  # noqa: ARG003  # for other metrics
        """Raise Refusal if the metric does not exist for these targets. `num_outputs` is None if it is not known yet. `key` is the parameter that
        names the metric.
        """
        if targets.form not in cls.forms:
            needs = "exactly one class a sample" if targets.form == "labels" else "a task with classes, but this task has none"
            raise Refusal(f"{key}: {cls.__module__.rpartition('.')[2]} needs {needs}: remove it")

    def part(self, outputs: "Tensor", targets: "Tensor") -> "Tensor":  # noqa: ARG002  # for the metrics
        """Return what `value` needs of a batch, on the device, without host synchronisation. Targets that are IGNORED (-100) must not count.

        `outputs` are (n, ..., num_outputs), `targets` (n, ...) are numbers of classes or tokens.
        """
        raise missing_method(type(self), "part(self, outputs, targets)")

    def value(self, whole: NDArray[Any]) -> float:  # noqa: ARG002  # for the metrics
        """Return the metric, on the host. It is NaN if the samples do not determine it."""
        raise missing_method(type(self), "value(self, whole)")


class FromCounts(Metric):
    """A metric of three counts for each class or label, (classes,): its samples, the samples that are predicted as it, and the correct ones of these."""

    def part(self, outputs: "Tensor", targets: "Tensor") -> "Tensor":
        import torch  # late: reading a direction needs no torch

        if targets.shape == outputs.shape:
            actual, named = targets > HALF, outputs > 0
            return torch.stack([marks.sum(dim=0) for marks in (actual, named, actual & named)])
        predicted, classes = outputs.argmax(-1), targets.clamp(min=0)
        every, correct = (targets >= 0).long(), (predicted == targets).long()
        tallies = ((classes, every), (predicted, every), (classes, correct))
        return torch.stack([targets.new_zeros(self.num_outputs).scatter_add_(0, *each) for each in tallies])

    def value(self, whole: Integers) -> float:
        return self.of(*whole)

    def of(self, support: Integers, predicted: Integers, hits: Integers) -> float:  # noqa: ARG002  # for the metrics
        raise missing_method(type(self), "of(self, support, predicted, hits)")


class OfPositiveClass(FromCounts):
    """A metric of the counts of the positive one of two classes."""

    of_positive = True

    @classmethod
    def refuse_misfit(cls, targets: type[Targets] | Targets, num_outputs: int | None, key: str) -> None:
        super().refuse_misfit(targets, num_outputs, key)
        if num_outputs not in (None, 2):
            raise Refusal(f"{key}: {cls.__module__.rpartition('.')[2]} needs two classes, but this data has {num_outputs}: write macro_f1")

    def of(self, support: Integers, predicted: Integers, hits: Integers) -> float:
        return self.of_class(*(int(counts[self.positive]) for counts in (support, predicted, hits)))

    def of_class(self, support: int, predicted: int, hits: int) -> float:  # noqa: ARG002  # for the metrics
        raise missing_method(type(self), "of_class(self, support, predicted, hits)")


class FromProbabilities(Metric):
    """A metric of the classes (n,) and the probabilities (n, classes) in float64 of all samples: the outputs of the split are kept until its end.

    If its `forms` have "labels", it gets 0 or 1 (n, labels) in place of classes, if samples have several labels.
    """

    keeps_rows = True

    def part(self, outputs: "Tensor", targets: "Tensor") -> "Tensor":
        import torch  # late: reading a direction needs no torch

        rows = targets if targets.ndim > 1 else targets[:, None]
        return torch.cat([outputs.float(), rows.float()], dim=1)  # float32 has all whole numbers below 2^24

    def value(self, whole: NDArray[np.float32]) -> float:
        whole = whole[whole[:, -1] >= 0]
        logits, targets = whole[:, : self.num_outputs].astype(np.float64), whole[:, self.num_outputs :].astype(np.int64)
        if not len(whole) or not np.isfinite(logits).all():
            return math.nan
        if targets.shape == logits.shape:
            return self.of(targets, scores.sigmoid(logits))
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return self.of(targets[:, 0], powers / powers.sum(axis=1, keepdims=True))

    def of(self, classes: Integers, probabilities: Floats) -> float:  # noqa: ARG002  # for the metrics
        raise missing_method(type(self), "of(self, classes, probabilities)")


def mean_of_classes(score: Callable[..., float], classes: Integers, probabilities: Floats, positive: int = 1) -> float:
    """Return the mean over the classes of `score(is_of_class, probability)`, or of two classes that of `positive`. `classes` (n, classes) are labels.

    Classes that all samples have, or none, are left out: they have no such score. NaN if no class is left.
    """
    marks = classes if classes.ndim > 1 else (classes[:, None] == np.arange(probabilities.shape[1]))
    every = (positive,) if classes.ndim == 1 and probabilities.shape[1] == 2 else range(probabilities.shape[1])
    found = [score(marks[:, k], probabilities[:, k]) for k in every if 0 < marks[:, k].sum() < len(classes)]
    return float(np.mean(found)) if found else math.nan


def directions(names: Iterable[str]) -> dict[str, Direction]:
    return {name: metric_named(name).direction for name in names}


def metric_named(name: str) -> type[Metric]:
    """Return the class of the metric `name`. Raises Refusal if its module does not define one with a direction."""
    metric = getattr(METRICS.module(name), "Metric", None)
    if not (isinstance(metric, type) and issubclass(metric, Metric)):
        raise Refusal(
            f"{METRICS.path(name)}: has no class `Metric`, a subclass of `measuring.Metric`: define it, as docs/extending.md explains"
        )
    if (direction := getattr(metric, "direction", None)) not in get_args(Direction):
        raise Refusal(
            f"{METRICS.path(name)}: `direction` of its class `Metric` is {direction!r}: "
            'write `direction = "max"` if larger values are better, else "min"'
        )
    return metric


def metrics_of(names: Iterable[str], spec: Spec, key: str) -> dict[str, Metric]:
    """Return the metrics called `names`. `key` is the parameter that names them.

    Raises Refusal if one does not exist for the targets, or has the name of another score.
    """
    found = {name: metric_named(name) for name in names}
    taken = {"samples", *spec.targets.metrics} - spec.targets.only_validated
    for name, metric in found.items():
        if name in taken:
            raise Refusal(f"{key}: {name} is the name of a score that this task always has: rename {METRICS.path(name)}")
        metric.refuse_misfit(spec.targets, spec.num_outputs, key)
    built = {name: metric(spec.num_outputs) for name, metric in found.items()}
    for each in built.values():
        if each.of_positive and spec.targets.positive_number is not None:
            each.positive = spec.targets.positive_number
    return built


def positive_class(metrics: Iterable[Metric], spec: Spec) -> str | None:
    """Return the name of the positive one of two classes if one of the metrics is that of it; else None."""
    number = spec.targets.positive_number
    if number is None or spec.num_outputs != 2 or not any(metric.of_positive for metric in metrics):
        return None
    return spec.targets.output_names[number]


def random_batch(targets: type[Targets] | Targets, num_outputs: int) -> "tuple[Tensor, Tensor]":
    """Return random outputs (TRIED, num_outputs) of a model, and random targets, with which something is tried. They are the same in each call.

    For a model that predicts tokens, both have TRIED_TOKENS tokens for each sample, the last of which is IGNORED.
    """
    import torch  # late: reading a direction needs no torch

    generator = torch.Generator().manual_seed(0)
    of_tokens = targets.form == "tokens"
    of_class = () if targets.form == "class" else (num_outputs,)  # a class does not know its `row_shape`
    shape = (TRIED, TRIED_TOKENS) if of_tokens else (TRIED, *(targets.row_shape if isinstance(targets, Targets) else of_class))
    outputs = torch.randn(*shape[: 1 + of_tokens], num_outputs, generator=generator)
    most = num_outputs if targets.form in ("class", "tokens") else 2
    integers = issubclass(targets.dtype, np.integer)
    random = torch.randint(most, shape, generator=generator) if integers else torch.randn(shape, generator=generator)
    if of_tokens:
        random[:, -1] = IGNORED
    return outputs, random


def refuse_unfit(
    metrics: Mapping[str, Metric],
    targets: type[Targets] | Targets,
    key: str,
    device: "torch.device | str" = "cpu",
    others: Mapping[str, Callable[[], object]] = MappingProxyType({}),
) -> None:
    """Try all metrics together with random outputs, for random targets and for equal ones. Raises Refusal if one fails, depends on the cut into batches or on
    earlier calls, draws random numbers, or changes its arguments or the values of another one.

    `key` is the parameter that names the metrics. `others` are functions to try with them, such as the loss, by the key and the file of each.
    """

    def tried(name: str, trial: Callable[[Metric, str], object], *, own: bool) -> object:
        metric = metrics[name]
        if own:
            metric = type(metric)(metric.num_outputs)
            if metric.of_positive:
                metric.positive = metrics[name].positive
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what is not determined for these samples
                return trial(metric, METRICS.path(name))
        except Refusal as refusal:
            raise Refusal(f"{key}: {refusal}") from None
        except (Exception, SystemExit) as error:  # whatever the module of a user raises
            place, reason = METRICS.failure(name, error)
            raise Refusal(f"{key}: {place}: fails: {type(error).__name__}: {reason}: {CORRECT}") from error

    # first with an object of its own, then with one that was made before all others: its class may keep something
    whole, short = (partial(values_of_trial, targets=targets, device=device, short=each) for each in (False, True))
    first = {f"{key}: {METRICS.path(name)}": partial(tried, name, whole, own=True) for name in metrics}
    again = {f"{key}: {METRICS.path(name)}": partial(tried, name, short, own=False) for name in metrics}
    refuse_interference({**others, **first}, {**others, **again}, exactly=str(device) == "cpu")


def values_of_trial(metric: Metric, path: str, targets: type[Targets] | Targets, device: "torch.device | str", *, short: bool) -> float:
    """Return the value for random targets. Unless `short`, try also equal ones, and other cuts into batches. `path` is the file of the metric.

    Raises Refusal if `part` changes its arguments, if random numbers are drawn on the host, or if a value depends on the cut into batches.
    """
    import torch  # late: reading a direction needs no torch

    from pipeline.inference.cuda_graphs import changed_generators, host_randomness

    before, found = None, list[float]()
    outputs, random = (each.to(device) for each in random_batch(targets, metric.num_outputs))
    for numbers, size in product((random, random * 0, random)[: 1 if short else 3], (TRIED, TRIED_BATCH)[: 1 if short else 2]):
        given = outputs.clone(), numbers.clone()
        parts = [metric.part(*pair) for pair in zip(*(torch.split(each, size) for each in given), strict=True)]
        if not all(torch.equal(each.cpu(), other.cpu()) for each, other in zip((outputs, numbers), given, strict=True)):
            raise Refusal(f"{path}: its `part` changes its arguments, which the other scores use, too: change a `clone()` of them")
        whole = torch.cat(parts) if metric.keeps_rows else torch.stack(parts).sum(dim=0)
        found.append(float(metric.value(whole.cpu().numpy())))
        before = before or host_randomness()  # the first call may import a library, which may draw
    if before and (names := changed_generators(before)):
        raise Refusal(
            f"{path}: draws random numbers from {names[0]}, so its value cannot be repeated: draw from a generator of its own with a fixed seed, "
            "such as `numpy.random.default_rng(0)`"
        )
    if not short and not np.allclose(found[:2], found[4:], equal_nan=True):
        raise Refusal(f"{path}: {OTHER_VALUE}")
    if not short and not np.allclose(found[::2], found[1::2], equal_nan=True):
        raise Refusal(
            f"{path}: gives another value if the split is cut into other batches: let `part` return whole numbers to add up, "
            "or with `keeps_rows = True` a row for each sample"
        )
    return found[0]


def refuse_interference(first: Mapping[str, Callable[[], object]], again: Mapping[str, Callable[[], object]], *, exactly: bool) -> None:
    """Call the functions `first`, by the key and the file that each tries, and after each of them those of `again` for it and all before it.

    Raises Refusal if one returns another value then: in any bit if `exactly`, else beyond rounding.
    """
    found: dict[str, Any] = {}
    for place, trial in first.items():
        found[place] = trial()
        for other, expected in found.items():
            value: Any = again[other]()
            if not (np.array_equal if exactly else np.allclose)(value, expected, equal_nan=True):
                raise Refusal(
                    f"{place}: {OTHER_VALUE}"
                    if other == place
                    else f"{place}: changes the value of {other.rpartition(' ')[2]}: change nothing that both use, such as a variable of a module or a class"
                )


class Measured:
    """Measures metrics in one pass over a split: `add` is called for each batch, in order, then `values` once."""

    def __init__(self, names: Iterable[str], spec: Spec, *, key: str, num_samples: int, batch_size: int) -> None:
        """Raises Refusal for a metric that does not fit `spec`, or would keep more than MOST_BYTES. `key` is the parameter that names the metrics."""
        self.num_samples, self.batch_size = num_samples, batch_size
        self.metrics = metrics_of(names, spec, key)
        self.measures = {metric.measure: metric for metric in self.metrics.values()}
        self.parts: dict[object, list[Tensor]] = {measure: [] for measure in self.measures}
        size_bytes = 4 * num_samples * (spec.num_outputs + math.prod(spec.targets.row_shape))
        if size_bytes > MOST_BYTES and (kept := [name for name, metric in self.metrics.items() if metric.keeps_rows]):
            raise Refusal(
                f"{key}: {kept[0]} keeps all outputs of the {num_samples} samples, {size_bytes} bytes, more than {MOST_BYTES}: remove it, "
                "or make the split smaller"
            )

    def add(self, outputs: "Tensor", targets: "Tensor") -> None:
        for measure, metric in self.measures.items():
            part, parts = metric.part(outputs, targets), self.parts[measure]
            if parts and not metric.keeps_rows:
                parts[0] = parts[0] + part  # whole numbers: the sum is the same in every order
            else:
                parts.append(part)

    def values(self, gathered: Exchange = lambda rows: rows, in_turn: Exchange = lambda rows: rows) -> dict[str, float]:
        """Return the metrics by name, without those that the samples do not determine. `gathered` and `in_turn` are those of the group of
        processes that have shared the batches.
        """
        import torch  # late: reading a direction needs no torch

        wholes = {}
        for measure, metric in self.measures.items():
            parts = self.parts[measure]
            if metric.keeps_rows:
                # batches of fewer samples, which are at the end of the split, are filled, so that all processes exchange as many rows
                equal = [torch.cat([rows, rows.new_zeros(self.batch_size - len(rows), *rows.shape[1:])]) for rows in parts]
                wholes[measure] = in_turn(torch.stack(equal)).flatten(0, 1)[: self.num_samples].cpu().numpy()
            else:
                wholes[measure] = gathered(parts[0][None]).sum(dim=0).cpu().numpy()
        # a copy: a metric may change what it gets, and others have it, too
        found = {name: float(metric.value(wholes[metric.measure].copy())) for name, metric in self.metrics.items()}
        return {name: value for name, value in found.items() if math.isfinite(value)}
