"""`python -m pipeline check`: validate parameters, environment, data and machine before DVC deletes or runs anything.

`refuse_misfits`, which `set` and `search` call, too, finds what of the parameters does not fit each other, without reading data.
"""

import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from pipeline.core import interruption, limits
from pipeline.core.environment import Environment, Paths
from pipeline.core.identity import refuse_other_source
from pipeline.core.params import UPGRADE, adding_lines, load
from pipeline.core.raw_dataset import TEST, TRAIN, VALID, Cluster
from pipeline.core.refusal import Problem, Refusal, Unavailable
from pipeline.core.registry import INPUTS, TASKS
from pipeline.core.section import flatten
from pipeline.core.untrusted import shown
from pipeline.core.yaml_document import Document
from pipeline.evaluate.params import EvaluateParams, EvaluateSettings
from pipeline.prepare.params import PrepareParams, SourceSettings, data_name
from pipeline.tools import checkout_lock
from pipeline.train.params import AugmentSettings, TrainParams

if TYPE_CHECKING:
    from pipeline.core.spec import Spec, Targets

DECODING_S = 20.0
"""How long `check` decodes images. `prepare` decodes them all: on many cores, 20 seconds are enough for some 100,000."""
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


def run() -> None:
    """Validate everything that a run needs, and print model, data, device and precision.

    First repair DVC's lock records: a DVC that was killed leaves them behind, and they would stop the next one. Raises Refusal if anything
    is invalid; the message has one line for each problem.
    """
    paths, problems = Paths(), Problems()
    dvc_folder = paths.top / ".dvc/tmp"
    if checkout_lock.dvc_records(dvc_folder):  # no lock file if there is nothing to repair: the checkout may be read-only
        with checkout_lock.held(paths.top):
            for message in dict.fromkeys(checkout_lock.repair_dvc(dvc_folder)):
                print(f"check: {message}")
    problems.gather(refuse_curly_brace, paths.top)
    problems.gather(refuse_links_outside, paths)
    environment = problems.gather(Environment.read)
    if environment:
        problems.gather(refuse_unfit_machine, environment)
    problems.document = problems.gather(Document.read, paths.params)
    plan = check_all(problems.document, environment, problems) if problems.document else None
    problems.refuse()
    print(f"check: {paths.params} is valid: {plan}")


def refuse_unfit_machine(environment: Environment) -> None:
    """Raise Refusal if a check of `doctor` finds that a training would fail, for example on a full disk.

    Print a warning if the installed packages differ from requirements.lock, because a result is recorded with this lock.
    """
    from pipeline.tools import doctor  # late: `set` imports this module for `refuse_misfits`

    findings = doctor.examine(environment, doctor.FOR_TRAINING)
    if (lock := findings["lock"]).status == "warning":
        print(f"warning: lock: {lock}", file=sys.stderr, flush=True)
    if problems := [f"{name}: {finding}" for name, finding in findings.items() if finding.status == "problem"]:
        raise Refusal("\n".join(problems))


def refuse_curly_brace(top: Path) -> None:
    """Raise Refusal if the checkout's path contains a curly brace: every `dvc repro` would fail after its first stage."""
    path = str(top.resolve())
    if "{" in path or "}" in path:
        remedy = "move the checkout to a path without braces"
        raise Refusal(f"{shown(path)}: this path contains a curly brace, which DVC interprets as a template: {remedy}")


def refuse_links_outside(paths: Paths) -> None:
    """Raise Refusal if a folder of results is a link to one outside of the Git repository: DVC would run the stage, then refuse its result."""
    if not (paths.top / ".git").exists():
        return
    top = paths.top.resolve()
    for folder in dict.fromkeys(path.parent for path in (paths.prepared, paths.model, paths.predictions)):
        if not (target := folder.resolve()).is_relative_to(top):
            raise Refusal(
                f"{folder} is a link to {shown(target)}, and DVC refuses results outside of the Git repository: make it a folder again; to have the data "
                "elsewhere, `python -m pipeline set source.root=/...`, and to have DVC's copies of all results there, `dvc cache dir --local /...`"
            )


def refuse_unusable_cluster(environment: Environment, prepare: PrepareParams) -> None:
    """If DVC would run `prepare` on the cluster of PIPELINE_CLUSTER, raise Refusal if the cluster cannot be used.

    DVC removes the prepared data before `prepare` finds out.
    """
    from pipeline.prepare.reading import workers  # late, as above

    if environment.cluster and (paths := prepare.source.cluster_paths()) is not None and would_run("prepare"):
        with workers.connected(Cluster(str(environment.cluster), paths)):
            pass


def check_all(document: Document, environment: Environment | None, problems: Problems) -> str:
    """Validate everything, download missing files, and return a text with model, data, device and precision.

    Problems are added to `problems`. If there are any, raises Refusal with all of them at two points: before the import of torch, which
    takes seconds, and before the first download. A failed download is only added, and the caller raises it. `environment` is None if an
    environment variable is invalid; the caller has already added this problem.
    """
    prepare = problems.gather(load, document, PrepareParams)
    train = problems.gather(load, document, TrainParams, sections_with_torch="never")
    evaluate = problems.gather(load, document, EvaluateParams)
    splits = set[str]()
    dataset = problems.gather(describe_dataset, prepare) if prepare else None
    if prepare and dataset:
        splits, num_classes = dataset
        if train:
            problems.gather(train.train.refuse_missing_validation, splits)
            problems.gather(refuse_unusable, train, prepare.source, num_classes)
        if evaluate:
            problems.gather(refuse_unscorable, evaluate.evaluate, prepare.source, num_classes)
    if any(problem.remedy == UPGRADE for problem in problems.found.values()):  # name what the model lacks, too, although this imports torch
        problems.gather(load, document, TrainParams, sections_with_torch="together")
    problems.refuse()
    assert prepare
    assert dataset
    assert train
    assert environment
    params = problems.gather(load, document, TrainParams)
    if params:
        problems.gather(params.loss.refuse_missing_splits, splits)
        gather_misfits(problems, params, prepare.source, dataset[1])
    device = problems.gather(describe_machine, train, environment)
    problems.refuse()  # before anything is downloaded
    assert params
    problems.gather(refuse_unusable_cluster, environment, prepare)
    problems.gather(refuse_other_data, prepare, Paths().prepared)
    with interruption.raise_on_signal():  # so that SIGTERM also removes partial downloads
        problems.gather(examine_files, prepare, environment)
        if params.model.downloaded and would_run("train"):
            problems.gather(params.model.fetch)
    return f"{params.model.title} on {data_name(flatten(document.data))}, {device}{expected_time(params, prepare, environment)}"


def expected_time(params: TrainParams, prepare: PrepareParams, environment: Environment) -> str:
    """Return about how long the training takes on a CPU, if its data are prepared, such as `, about 7 minutes`; else "".

    It is measured for about a second, unless it is so short that this would not pay.
    """
    from pipeline.core.prepared import read_record  # late, as the others: they import NumPy and torch
    from pipeline.inference import machine
    from pipeline.tools import training_time

    if machine.choose_device(environment.device).type != "cpu" or environment.processes != 1:
        return ""
    try:
        record = read_record(Paths().prepared)
    except Refusal:
        return ""
    if record.source != prepare.source.model_dump(mode="json"):
        return ""
    seconds = training_time.expected_s(params, record.spec, {name: each.samples for name, each in record.splits.items()}, environment)
    return f", {training_time.in_words(seconds)}" if seconds is not None else ""


def describe_dataset(prepare: PrepareParams) -> tuple[set[str], int | None]:
    """Return the names of the splits, and the number of classes or None.

    For the user's own files, file names and targets are read; None then means that the data has no classes. For a published dataset, no file
    is read: its settings declare the splits and usually the number of classes; None then means that they do not declare this number.
    """
    from pipeline.prepare import stage  # late: a typing error is reported before numpy is imported

    if not prepare.source.untrusted:
        prepare.source.refuse_missing()
        return {TRAIN, TEST} | ({VALID} if prepare.source.valid or prepare.source.folds else set()), prepare.source.num_classes()
    raw_dataset, assigned = stage.survey(prepare, workers=1, quick=True)
    return {str(name) for names in assigned.values() for name in names}, len(raw_dataset.task.output_names) or None


def examine_files(prepare: PrepareParams, environment: Environment) -> None:
    """If DVC would run `prepare`, download the missing files of a published dataset, and read its file names and targets. Decode the user's
    own files for DECODING_S seconds.

    Raises Refusal with the remedy if this fails, or for files that `prepare` would refuse.
    """
    from pipeline.prepare import stage

    source = prepare.source
    if (source.downloaded or source.untrusted) and would_run("prepare"):
        if source.downloaded:
            stage.survey(prepare, workers=1, quick=True)
        if source.untrusted:
            source.refuse_damaged(workers=environment.workers or limits.usable_cpus(), within_s=DECODING_S)


def refuse_other_data(prepare: PrepareParams, prepared: Path) -> None:
    """Raise Refusal if the prepared data were made with other parameters, and DVC would not run `prepare`."""
    try:
        refuse_other_source(prepare.source, prepared)
    except Refusal:
        if not would_run("prepare"):
            raise


def would_run(stage: str) -> bool:
    """Return True if DVC would run `stage` or one of the stages on which `stage` depends, or if `dvc status` fails."""
    command = [sys.executable, "-m", "dvc", "status", "--json", "--with-deps", stage]
    status = subprocess.run(command, capture_output=True, text=True, check=False)
    return status.returncode != 0 or status.stdout.strip() != "{}"


def describe_machine(params: TrainParams, environment: Environment) -> str:
    """Return a description of the devices and the precision that training would use.

    Raises Refusal if they cannot be used, or if the batch cannot be shared equally by PIPELINE_PROCESSES.
    """
    from pipeline.inference import precision  # late: torch takes seconds to import, and a typing error is reported before
    from pipeline.inference.machine import Machine
    from pipeline.tools import torchrun

    machine, count = Machine.set_up(environment), torchrun.num_processes(environment)
    params.train.refuse_undivided(count)
    chosen = precision.choose(params.train.precision, machine.device)
    precision.refuse_lost_updates(chosen, machine.device)
    return f"training on {machine.device} ({machine.name}) in {chosen}" + (f", in {count} processes" if count > 1 else "")


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
