"""The stage train: trains on `data/prepared/` and writes `models/model.safetensors`."""

import io
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from functools import partial
from typing import Any

from pipeline.data.prepared import Prepared, read_record
from pipeline.engine import history_and_metrics, model_file, oom_retry, starting_weights, torch_errors
from pipeline.engine.checkpoint import Checkpoints
from pipeline.io import files
from pipeline.io.tensor_file import Tensors
from pipeline.params.train import TrainParams
from pipeline.paths import Paths
from pipeline.refusal import Refusal, Unavailable
from pipeline.runtime import interruption, processes, run_identity, training_folder
from pipeline.runtime.environment import Environment
from pipeline.runtime.interruption import Interrupted, Interruption
from pipeline.runtime.machine import Machine, set_determinism
from pipeline.runtime.processes import Processes
from pipeline.runtime.training_folder import Work
from pipeline.stages import run_description
from pipeline.stages.stage_inputs import ChangedInPlace, RefuseChanges
from pipeline.terminal import model_size
from pipeline.terminal.training_lines import TrainingLength, training_lines
from pipeline.tracking import run as tracking
from pipeline.tracking.run import Run
from pipeline.training import Training, no_pause


def train(
    params: TrainParams, paths: Paths, environment: Environment, *, sections: Mapping[str, Any], refuse_changes: RefuseChanges
) -> None:
    """Train a model on the prepared data, and write the model file, `history.csv` and `train.json`.

    If a training with the same data, code, parameters and so on (see `identify`) was interrupted, resume from its last complete checkpoint.
    Otherwise start from the beginning. `sections` is the content of `params.yaml`, as written there; only tracking uses it.
    `refuse_changes` is called before the results are written. If it raises Refusal, the training remains in its work folder, to be resumed,
    unless other bytes were written into a file of the data.
    """
    machine = Machine.set_up(environment)
    set_determinism(params.train.deterministic)
    with processes.joined(environment, machine.device) as group, redirect_stdout(sys.stdout if group.is_first else io.StringIO()):
        if not group.is_first:
            environment = environment.model_copy(update={"tracking": False})
        # reading all of the data once per machine is enough; the others meet this process, or its Refusal, at `refuse_different`
        prepared = Prepared.open(paths.prepared, verify=group.local_rank == 0)
        identity = identify(params, paths, prepared, machine, group)
        group.refuse_different("inputs", identity.record)
        # of the data and of the file of `model.weights`: both are verified and digested again
        refuse = partial(refuse_changes, lambda: identify(params, paths, Prepared.open(paths.prepared), machine, group) == identity)
        with training_folder.claimed(environment.root, identity, is_first=group.is_first) as work:
            training = begin(params, prepared, machine, work, environment, group)
            more = {"inputs": identity.record, "data": str(training.train_split)}
            described = read_record(paths.prepared).model_dump(mode="json")
            info = run_description.of_training(sections, paths, environment, prepared=described, more=more)
            if group.is_first:
                print_size(training)
            followed = partial(run_description.is_evaluated_next, paths, environment)
            with tracking.training(environment, resume_file=work.folder / "run", info=info, is_followed=followed) as run:
                with interruption.deferred() as interrupted, torch_errors.with_remedies(size="train.micro_batch_size"):
                    loop(training, run, environment, interrupted, work)
                group.wait()  # a process that hangs at the end is noticed here, before the checkpoints are removed
                exported = training.exported() if group.is_first or training.state.sharding else None
                save_if_refused(training, refuse, work)
                if group.is_first and exported:
                    write_results(training, exported, paths, identity)
                    run_description.add_training(run, paths, info)
            # again: the end of the run may have waited minutes for MLflow
            if not training.state.sharding:
                save_if_refused(training, refuse, work)
            elif group.is_first:
                refuse()  # without a checkpoint, for which the other processes would have to wait as long
            if group.is_first:
                work.clear()
                print(result_line(training, paths), flush=True)


def begin(params: TrainParams, prepared: Prepared, machine: Machine, work: Work, environment: Environment, group: Processes) -> Training:
    """Return the training at its last checkpoint, or at its start.

    Of several processes, the first one moves damaged checkpoints aside before the others look for the newest. Raises Unavailable if they
    find different ones, for example because a network file system shows a new file late.
    """
    checkpoints = Checkpoints(work.folder, environment.checkpoints_kept, moves_damaged=group.is_first)
    if group.is_first:
        files.sweep(work.folder)
        if group.size > 1:
            checkpoints.newest()
    group.wait()  # until the first process has claimed the folder and read the checkpoints
    micro_batch_changes = work.micro_batch_changes()
    with torch_errors.with_remedies(size="model"):
        training = Training.begin(params, prepared, machine, checkpoints, micro_batch_changes=micro_batch_changes, processes=group)
    group.refuse_different("resumed", {"checkpoint": training.state.step, "switches": micro_batch_changes}, Unavailable)
    return training


def identify(params: TrainParams, paths: Paths, prepared: Prepared, machine: Machine, group: Processes) -> run_identity.RunIdentity:
    """Return everything that determines the bytes of the model file: data, code, lock file, parameters, `model.weights` and machine.

    `machine` is this machine and the device on which the model is trained. The digest of the code covers the files that dvc.yaml lists for
    the stage train. The number of processes in `group` counts only if `train.lanes` is 1. Raises Refusal if the file that `model.weights`
    names is missing, or if dvc.yaml does not describe the stage.
    """
    sections = params.model_dump(mode="json")
    number = {"processes": group.size} if group.size > 1 and params.train.lanes == 1 else {}
    listed = run_identity.dependencies("train", sections, paths.top)
    return run_identity.RunIdentity(
        data=prepared.digest,
        code=run_identity.code_digest(listed, paths.top),
        lock=files.digest(paths.lock),
        params=sections,
        fingerprint=machine.fingerprint() | number,
        weights=starting_weights.digest(params.model),
    )


def loop(training: Training, run: Run, environment: Environment, interrupted: Interruption, work: Work) -> None:
    """Run all steps, send their metrics to tracking and the terminal, and save a checkpoint whenever one is due.

    Samples per second and memory use are sent to tracking only, because they differ each time the same training is run. `interrupted`
    records a signal to stop. After such a signal, finish the current step or validation batch, save a checkpoint, and raise Interrupted.
    Several processes agree on the step after which they stop. If one of them runs out of memory, it ends with the exit code OUT_OF_MEMORY.
    """
    start_s, start_step = time.perf_counter(), training.state.step
    # a checkpoint of shards is due one pause later, and cannot be saved within a validation
    pause = no_pause if training.state.sharding else partial(training.processes.pause, interrupted)
    first, sharded = training.processes.is_first, training.state.sharding
    try:
        with training_lines(training_length(training), training.machine.device, is_first=first) as lines:
            for report in training.reports(lines.validating(pause)):
                if report.metrics:
                    elapsed_s, steps = time.perf_counter() - start_s, report.step - start_step
                    rate = {"train/samples_per_second": steps * training.params.train.batch_size / elapsed_s}
                    run.metrics(report.step, {**report.metrics, **rate, **training.machine.memory()})
                    start_s, start_step = time.perf_counter(), report.step
                lines.report(report.step, report.metrics)
                if first and not sharded:
                    training.save_when_due(environment)
                # the shards of all processes are saved together, one step after the first process has found that a checkpoint is due
                if training.processes.pause(interrupted, save=bool(first and sharded and training.save_fell_due(environment))):
                    training.save()
            if training.processes.size > 1:
                training.processes.pause(interrupted)  # the answer for the last step
    except Interrupted:
        if not training.processes.is_first:
            if training.state.sharding:
                training.save()
            training.processes.wait()  # until the first process has saved: it may need this one's part of the step
            raise
        training.save_now()
        training.processes.wait()
        saved = training.saver.saved_step
        after = (
            "no checkpoint was saved: the same command starts from the beginning"
            if saved is None
            else f"step {saved} is saved: the same command continues after it"
        )
        print(f"train: {after}", flush=True)
        raise
    except oom_retry.RestartWithSmallerMicroBatch as restart:
        work.add_micro_batch_change(restart.change)
        print(f"train: rank {training.processes.rank}: {restart}", file=sys.stderr, flush=True)
        os._exit(processes.OUT_OF_MEMORY)  # not by an exception: the other processes wait for this one
    finally:
        training.saver.wait()


def save_if_refused(training: Training, refuse: Callable[[], None], work: Work) -> None:
    """Call `refuse` in the first process. If it raises Refusal, save a checkpoint, from which the training ends at once when it is repeated.

    After ChangedInPlace, delete the checkpoints instead, because they may come from both the old and the new data. If the weights are divided
    among the processes, all of them save together: the others then end here too, without an error of their own.
    """
    group, problem = training.processes, None
    if group.is_first:
        try:
            refuse()
        except Exception as error:  # raised below: the other processes wait for the answer
            problem = error
    failed, saves = problem is not None, isinstance(problem, Refusal) and not isinstance(problem, ChangedInPlace)
    if training.state.sharding:
        failed, saves = group.any(failed), group.any(saves)
    if saves and training.save_now():
        step = training.state.step
        print(f"train: step {step} is saved: with the old values, code and data, the same command continues after it", flush=True)
    if isinstance(problem, ChangedInPlace):
        work.clear()
        print("train: the checkpoints are deleted, because they may come from both the old and the new data", flush=True)
    if failed and training.state.sharding:
        group.wait()  # until the first process has saved: torch.distributed.run would stop it when another one ends
    if problem:
        raise problem
    if failed:
        sys.exit(0)


def training_length(training: Training) -> TrainingLength:
    settings = training.params.train
    return TrainingLength(
        num_steps=training.plan.num_steps,
        batch_size=settings.batch_size,
        num_samples=len(training.prepared.train),
        metric=settings.metric,
        may_stop_early=settings.patience is not None,
    )


def print_size(training: Training) -> None:
    """Print how large the model is, and how much memory its training is expected to take."""
    settings, state = training.params.train, training.state
    lane_size = settings.batch_size // max(settings.lanes, training.processes.size)
    measured = model_size.ModelSize.of(
        state, training.params, training.prepared, micro_batch_size=min(training.progress.micro_batch_size, lane_size)
    )
    for line in measured.lines(state.device):
        print(f"train: {line}", flush=True)


def result_line(training: Training, paths: Paths) -> str:
    """Return the result of a finished training: the model file, the step of its weights, and the metric of the validation at that step."""
    best, best_step, metric = training.progress.best_value, training.progress.best_step, training.params.train.metric
    step = best_step if training.progress.best is not None and best_step else training.state.step
    found = next((row[metric] for row in training.progress.rows if row["step"] == step and metric in row), None)
    score = f", {metric} {found:.4f}" if found is not None else ""
    better = f" (best: {best:.4f} after step {best_step})" if best is not None and step != best_step else ""
    settings, state = training.params.train, training.state
    early = f"; stopped after {settings.patience} validations without a better {metric}" if state.step < training.plan.num_steps else ""
    return f"train: {paths.model}: the weights after step {step}, {training_length(training).epoch(step)}{score}{better}{early}"


def write_results(training: Training, exported: tuple[Tensors, int], paths: Paths, identity: run_identity.RunIdentity) -> None:
    """Write the model file, `history.csv` and `train.json`. `exported` are the weights, and the step after which they were taken.

    The files contain no time, path or run id, so that equal trainings write equal bytes.
    """
    weights, step = exported
    manifest = model_file.Manifest(
        params=training.params.model_dump(mode="json"),
        spec=training.prepared.spec,
        precision=training.state.precision,
        step=step,
        switches=training.progress.micro_batch_changes,
        inputs=identity.digests,
        fingerprint=dict(identity.fingerprint),
    )
    files.sweep(paths.model.parent)
    model_file.export(paths.model, weights, manifest)
    history_and_metrics.write_history(paths.history, training.progress.rows, training.columns)
    history_and_metrics.write_metrics(paths.metrics / "train.json", training.progress, step, training.columns)
