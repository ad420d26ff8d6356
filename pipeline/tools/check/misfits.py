"""Finds what of the parameters does not fit each other, the data or the network, without reading data."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from pipeline.core.params import adding_lines, load
from pipeline.core.refusal import Problem, Refusal, Unavailable
from pipeline.core.registry import INPUTS, TASKS
from pipeline.core.yaml_document import Document
from pipeline.evaluate.params import EvaluateParams, EvaluateSettings
from pipeline.prepare.params import PrepareParams, SourceSettings
from pipeline.train.params import AugmentSettings, TrainParams

if TYPE_CHECKING:
    from pipeline.core.spec import Spec, Targets

P = ParamSpec("P")
Result = TypeVar("Result")


class Problems:
    """Collects the problems of several Refusals, each message once, and whether all of them are Unavailable.

    `document` is the parsed params.yaml, once it was read: file and line are then added to each problem of one of its keys.
    """

    def __init__(self) -> None:
        self.document: Document | None = None
        self.found: dict[str, Problem] = {}
        self.kind: type[Refusal] = Unavailable

    def gather(self, attempt: Callable[P, Result], *arguments: P.args, **options: P.kwargs) -> Result | None:
        """Return what `attempt` returns, or None if it raises Refusal."""
        try:
            with adding_lines(self.document) if self.document else nullcontext():
                return attempt(*arguments, **options)
        except Refusal as refusal:
            self.found |= {str(problem): problem for problem in refusal.problems}
            self.kind = self.kind if isinstance(refusal, self.kind) else Refusal
            return None

    def refuse(self) -> None:
        if self.found:
            raise self.kind.of(sorted(self.found.values(), key=lambda problem: problem.line))


def targets_of(source: SourceSettings) -> "type[Targets]":
    """Return the class that describes the targets of the dataset in `source`, the section `source` of params.yaml.

    Raises Refusal if this pipeline does not have the task that the dataset needs.
    """
    if source.targets_kind not in TASKS.names:
        raise Refusal(
            f"source.name: the dataset {source.name} needs the task {source.targets_kind}, but this pipeline has only these tasks: "
            f"{', '.join(TASKS.names)}: choose another dataset, or add the task as pipeline/tasks/{source.targets_kind}/targets.py"
        )
    targets: type[Targets] = TASKS.module(source.targets_kind).Targets
    return targets


def refuse_unusable(train: TrainParams, source: SourceSettings, num_classes: int | None) -> None:
    """Raise Refusal if a training parameter cannot be used for the source: for its kind of task, its kind of inputs or `num_classes`.

    `num_classes` is None if the data has no classes, or if their number is not known yet; it is then not checked.
    """
    targets = targets_of(source)
    train.train.refuse_unknown_metric([*targets.metrics, *train.train.metrics])
    refuse_unmeasurable(train.train.metrics, targets, num_classes, "train.metrics")
    if train.augment is not None:
        train.augment.refuse_other_inputs(INPUTS.module(source.inputs).Inputs, source.inputs, targets)
    if not targets.mixable and isinstance(train.augment, AugmentSettings) and (train.augment.mixup or train.augment.cutmix):
        raise Refusal(
            "augment: mixup and CutMix need a task with classes, but this task has none: write `augment.mixup: 0.0` and `augment.cutmix: 0.0`"
        )


def refuse_unmeasurable(metrics: Iterable[str], targets: "type[Targets]", num_classes: int | None, key: str) -> None:
    """Raise Refusal if a metric that the parameter `key` names does not exist for the targets, or fails when it is tried."""
    from pipeline.inference import measuring  # late: it imports NumPy

    found = {name: measuring.metric_named(name) for name in metrics}
    for metric in found.values():
        metric.refuse_misfit(targets, num_classes, key)
    if num_classes is not None:
        measuring.refuse_unfit({name: metric(num_classes) for name, metric in found.items()}, targets, key)


def refuse_unscorable(settings: EvaluateSettings, source: SourceSettings, num_classes: int | None) -> None:
    """Raise Refusal if an evaluation parameter does not apply to the source's task, to its kind of inputs or to `num_classes`.

    `num_classes` is None if the data has no classes, or if their number is not known yet; it is then not checked.
    """
    settings.refuse_other_task(source.targets_kind)
    settings.refuse_impossible_views(INPUTS.module(source.inputs).Inputs, targets_of(source).metrics)
    refuse_unmeasurable(settings.metrics, targets_of(source), num_classes, "evaluate.metrics")
    if num_classes is not None:
        settings.refuse_misfit(num_classes)


def refuse_misfits(document: Document) -> None:
    """Raise Refusal if the parameters in `document` are invalid or do not fit each other. No data is read, and no machine is examined."""
    prepare, train, evaluate = load(document, PrepareParams), load(document, TrainParams), load(document, EvaluateParams)
    problems = Problems()
    source, num_classes = prepare.source, prepare.source.num_classes()
    problems.gather(refuse_unusable, train, source, num_classes)
    problems.gather(refuse_unscorable, evaluate.evaluate, source, num_classes)
    gather_misfits(problems, train, source, num_classes)
    problems.refuse()


def gather_misfits(problems: Problems, train: TrainParams, source: SourceSettings, num_classes: int | None) -> None:
    """Add to `problems` what of the training does not fit the source and can only be found with torch: of the loss, the transforms and the
    network.
    """
    problems.gather(refuse_unfit_loss, train, targets_of(source), num_classes)
    if train.augment:
        problems.gather(train.augment.refuse_other_transforms, source.inputs)
    problems.gather(refuse_unfit_network, train, source)


def refuse_unfit_loss(params: TrainParams, targets: "type[Targets]", num_outputs: int | None) -> None:
    """Raise Refusal if the loss cannot be used for the targets, or fails when it is tried. It is not tried if `num_outputs` is None."""
    from pipeline.train import loss_trial

    params.loss.refuse_misfit(targets)
    if num_outputs is not None:
        loss_trial.refuse_unfit(params, targets, num_outputs)


def refuse_unfit_network(params: TrainParams, source: SourceSettings) -> None:
    """Raise Refusal if the settings of the model do not fit each other or the source's kind of task, if the weights file that
    `model.weights` names cannot be used, or if `train.freeze` or the optimizer's `groups` or `layer_decay` does not fit the network.

    The network is built without memory, for the data that the weights file describes, or else for an example of data of the same kind.
    What depends on the real data is checked when the training begins: whether the images are large enough, for example.
    """
    from pipeline.inference import networks
    from pipeline.train import beginning
    from pipeline.train.engine import optimizers

    params.model.refuse_missing_weights()
    spec = beginning.inspect(params.model) or example_spec(source)
    if spec is None:
        return
    params.model.normalized(spec.inputs)
    if network := networks.build_on_meta(params.model, spec):
        params.model.add_updates(network, frozenset())
        optimizers.freeze(network, params.train.freeze)
        optimizers.adjustments(network, params.optimizer)


def example_spec(source: SourceSettings) -> "Spec | None":
    """Return the description of an example of data: its inputs and targets are of the same kinds as those of `source`.

    Return None if these kinds have no example.
    """
    from pipeline.core.spec import Spec

    inputs, targets = INPUTS.module(source.inputs).Inputs.example(), targets_of(source).example()
    return Spec(inputs=source.example_inputs(inputs), targets=targets) if inputs and targets else None
