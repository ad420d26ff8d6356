"""The stage train: trains on `data/prepared/` and writes `models/model.safetensors`."""

import shlex
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pipeline.core import files, identity, interruption
from pipeline.core.environment import Environment, Paths
from pipeline.core.identity import ChangedInPlace, RefuseChanges
from pipeline.core.interruption import Interrupted, Interruption
from pipeline.core.observer import Observer, ending
from pipeline.core.prepared import Prepared
from pipeline.core.raw_dataset import VALID
from pipeline.core.refusal import Refusal, Unavailable, rounded
from pipeline.inference import model_file, torch_errors
from pipeline.inference.machine import Machine, set_determinism
from pipeline.inference.params import WEIGHTS_FOLDER
from pipeline.inference.tensor_file import Tensors
from pipeline.train import beginning, history, model_trial, work_folder
from pipeline.train.engine import plan
from pipeline.train.engine.checkpoint import Checkpoints
from pipeline.train.engine.fit import Diverged
from pipeline.train.group import processes
from pipeline.train.group.processes import Group
from pipeline.train.params import TrainParams
from pipeline.train.training import Training
from pipeline.train.work_folder import Work


def train(params: TrainParams, paths: Paths, environment: Environment, *, observer: Observer, refuse_changes: RefuseChanges) -> None:
    """Train a model on the prepared data, and write the model file, `history.csv` and `train.json`.

    If a training with the same data, code, parameters and so on (see `identify`) was interrupted, resume from its last complete checkpoint.
    Otherwise start from the beginning. `observer` is told what happens, in the first of several processes only. `refuse_changes` is called
    before the results are written. If it raises Refusal, the training remains in its work folder, to be resumed, unless other bytes were
    written into a file of the data.
    """
    machine = Machine.set_up(environment)
    set_determinism(params.train.deterministic, training=True)
    with processes.joined(environment, machine.device) as group:
        observer = observer if group.writes else Observer()
        prepared = Prepared.open(paths.prepared, verify=group.reads_all)
        identity = identify(params, paths, prepared, machine, group)
        group.refuse_different("inputs", identity.parts)
        # to find whether the data have changed, they and the file of `model.weights` are read and digested again
        refuse = partial(refuse_changes, lambda: identify(params, paths, Prepared.open(paths.prepared), machine, group) == identity)
        agrees = partial(same_until, params, len(prepared.train))
        with work_folder.claimed(environment.root, identity, writes=group.writes, agrees=agrees) as work:
            training = begin(params, prepared, machine, work, environment, group)
            model_trial.refuse_unfit(training)
            observer.training_begins(training, identity.record)
            with ending(observer):
                remedies = torch_errors.with_remedies(size="train.micro_batch_size")
                try:
                    with interruption.deferred() as interrupted, remedies, training.saver.finishing():
                        loop(training, observer, environment, interrupted, work)
                except Diverged as refusal:
                    message = f"{refusal}{way_on(training, identity, work)}"
                    group.wait()  # until the first process has written: torch.distributed.run would stop it when another one ends
                    raise Refusal(message) from None
                group.wait()  # a process that hangs at the end is noticed here, before the checkpoints are removed
                model_trial.refuse_unfit(training)
                exported = training.exported()
                save_if_refused(training, refuse, work)  # from here on, only the first process goes on
                write_results(training, exported, paths, identity)
                observer.results_are_written()
            save_if_refused(training, refuse, work)  # again: the end of the run may have waited minutes for MLflow
            work.clear(keeps_lasting=True)
            print(result_line(training, paths), flush=True)


def begin(params: TrainParams, prepared: Prepared, machine: Machine, work: Work, environment: Environment, group: Group) -> Training:
    """Return the training at its last checkpoint, or at its start.

    Raises Unavailable if several processes find different checkpoints, for example because a network file system shows a new file late.
    """
    params.model.refuse_missing_weights()
    checkpoints = Checkpoints(work.folder, environment.checkpoints_kept, writes=group.writes)
    group.sweep(work.folder, checkpoints.newest)
    micro_batch_changes = work.micro_batch_changes()
    with torch_errors.with_remedies(size="model"):
        training = Training.begin(params, prepared, machine, checkpoints, micro_batch_changes=micro_batch_changes, group=group)
    group.refuse_different("resumed", {"checkpoint": training.state.step, "switches": micro_batch_changes}, Unavailable)
    return training


def identify(params: TrainParams, paths: Paths, prepared: Prepared, machine: Machine, group: Group) -> identity.RunIdentity:
    """Return everything that determines the bytes of the model file: data, code, lock file, parameters, `model.weights` and machine.

    `machine` is this machine and the device on which the model is trained. The digest of the code covers the files that dvc.yaml lists for
    the stage train. The number of processes in `group` counts only if `train.lanes` is 1. Raises Refusal if the file that `model.weights`
    names is missing, or if dvc.yaml does not describe the stage.
    """
    sections = params.model_dump(mode="json")
    listed = identity.dependencies("train", sections | {"evaluate": {"name": prepared.spec.targets.kind}}, paths.top)
    return identity.RunIdentity(
        data=prepared.digest,
        code=identity.code_digest(listed, paths.top),
        lock=files.digest(paths.lock),
        params=sections,
        fingerprint=machine.fingerprint() | group.fingerprint(params.train.lanes),
        weights=beginning.weights_digest(params.model.weights_file),
    )


def same_until(params: TrainParams, num_samples: int, step: int, other: Mapping[str, Any]) -> bool:
    """Return True if a training of another length, with the values `other` of the section `train`, is the same up to `step`."""
    settings = params.train, params.train.model_copy(update={name: other[name] for name in ("epochs", "steps")})
    lengths = [each.num_steps(num_samples) for each in settings]
    return plan.same_until(step, lengths, params.schedule, validate_every_steps=params.train.validate_every_steps)


def loop(training: Training, observer: Observer, environment: Environment, interrupted: Interruption, work: Work) -> None:
    """Run all steps, tell their metrics to the observer, and save a checkpoint whenever one is due.

    `interrupted` records a signal to stop. After such a signal, finish the current step or validation batch, save a checkpoint, and raise
    Interrupted. Several processes agree on the step after which they stop. If one of them runs out of memory, it ends with the exit code
    OUT_OF_MEMORY.
    """

    def between_batches() -> None:
        training.group.pause(interrupted)
        observer.validation_continues()

    training.group.before_restart(work.add_micro_batch_change)
    try:
        for report in training.reports(between_batches):
            observer.step_ends(report.step, report.metrics)
            training.save_when_due(environment)
            training.group.pause(interrupted)
        training.group.pause(interrupted)  # several processes learn of a signal only at the next call
    except Interrupted:
        observer.steps_end()
        training.save_now()
        training.group.close()  # when the first process has saved: it may need this one's part of the step
        saved = training.saver.saved_step
        after = (
            "no checkpoint was saved: the same command starts from the beginning"
            if saved is None
            else f"step {saved} is saved: the same command continues after it"
        )
        print(f"train: {after}", flush=True)
        raise
    finally:
        observer.steps_end()


def way_on(training: Training, identity: identity.RunIdentity, work: Work) -> str:
    """Write the last finite weights of a training that has diverged to a model file in the work folder. Return how a training of other
    parameters begins, without and with them, as the end of a message; "" if there are no finite weights. All processes call this.
    """
    weights, step = training.last_finite()
    if not weights:
        return ""
    params, path = training.params, work.folder / f"weights-{step:012d}.safetensors"
    can_skip = params.train.on_nonfinite != "skip" and training.state.precision != "fp16"
    change = "train.on_nonfinite=skip" if can_skip else f"optimizer.learning_rate={params.optimizer.learning_rate / 2:.3g}"
    again = f"; after such a change, as by `python -m pipeline set {change}`, `make repro` begins at step 0 with new weights"
    kept = f"the weights after step {step}{', the best so far,' if training.progress.best is not None else ''}"
    try:
        model_file.export(path, weights, training.manifest(step, identity.digests, identity.fingerprint))
    except OSError as error:
        return f"{again}; {kept} could not be written to {path} ({error.strerror})"
    name = f"{work.folder.name[:8]}-step-{step}.safetensors"
    copy = shlex.join(["cp", str(path), str(WEIGHTS_FOLDER / name)])
    return f"{again}, or with {kept} if you also run `{copy} && python -m pipeline set model.weights={name}`"


def save_if_refused(training: Training, refuse: Callable[[], None], work: Work) -> None:
    """Call `refuse`. If it raises Refusal, save a checkpoint, from which the training ends at once when it is repeated.

    After ChangedInPlace, delete the checkpoints instead, because they may come from both the old and the new data. Of several processes, the
    first one calls `refuse`, all save together, and the others end.
    """
    problem = training.group.problem(refuse)
    if isinstance(problem, ChangedInPlace):
        work.clear()
        print("train: the checkpoints are deleted, because they may come from both the old and the new data", flush=True)
    elif isinstance(problem, Refusal) and training.save_now():
        step = training.state.step
        print(f"train: step {step} is saved: with the old values, code and data, the same command continues after it", flush=True)
    training.group.leave(problem)


def result_line(training: Training, paths: Paths) -> str:
    """Return the result of a finished training: the model file, the step of its weights, and the metric of the validation at that step."""
    settings, state = training.params.train, training.state
    best, best_step, metric = training.progress.best_value, training.progress.best_step, settings.metric
    step = best_step if training.progress.best is not None and best_step else training.state.step
    found = next((row[metric] for row in training.progress.rows if row["step"] == step and metric in row), None)
    score = f", {metric} {rounded(found)}" if found is not None else ""
    better = (
        f" (best: {rounded(best)} after step {best_step})"
        if best is not None and step != best_step and (found is None or rounded(best) != rounded(found))
        else ""
    )
    early = f"; stopped after {settings.patience} validations without a better {metric}" if state.step < training.plan.num_steps else ""
    if training.progress.ended_at is not None:
        early = f"; a non-finite value ended the training after step {state.step} of {training.plan.num_steps}"
    never = f"; no validation determines {metric}" if best is None and training.progress.rows and VALID in training.prepared.splits else ""
    return f"train: {paths.model}: the weights after step {step}, epoch {step * settings.batch_size / len(training.prepared.train):.1f}{score}{better}{never}{early}"


def write_results(training: Training, exported: tuple[Tensors, int], paths: Paths, identity: identity.RunIdentity) -> None:
    """Write the model file, `history.csv` and `train.json`. `exported` are the weights, and the step after which they were taken.

    The files contain no time, path or run id, so that equal trainings write equal bytes.
    """
    weights, step = exported
    files.sweep(paths.model.parent)
    manifest = training.manifest(step, identity.digests, identity.fingerprint).model_copy(update={"spec": training.decided(weights)})
    model_file.export(paths.model, weights, manifest)
    history.write_history(paths.history, training.progress.rows, training.columns)
    history.write_metrics(paths.metrics / "train.json", training.progress, step, training.columns)
