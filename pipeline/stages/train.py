"""Stage train: from `data/prepared/` to `models/model.safetensors`."""

import time
from collections.abc import Iterator

from pipeline.data.prepared import Prepared, read_record
from pipeline.engine import fit, model_file, results, torch_errors
from pipeline.engine.checkpoint import Checkpoints
from pipeline.io import files
from pipeline.params.document import Document
from pipeline.params.train import TrainParams
from pipeline.paths import Paths
from pipeline.runtime import interruption, machine, run_identity, workspace
from pipeline.runtime.environment import Environment
from pipeline.runtime.interruption import Interrupted, Interruption
from pipeline.runtime.machine import Machine
from pipeline.tracking import run as tracking
from pipeline.tracking import run_description
from pipeline.tracking.run import Run
from pipeline.tracking.run_info import RunInfo
from pipeline.training import Training


def train(params: TrainParams, paths: Paths, environment: Environment) -> None:
    """Train from scratch, or go on from the last whole checkpoint of the same inputs."""
    here = Machine.claim(environment)
    machine.set_determinism(params.train.deterministic)
    prepared = Prepared.open(paths.prepared)
    identity = identify(paths, prepared, here)
    with workspace.claimed(environment.root, identity) as place:
        files.sweep(place.folder)
        with torch_errors.in_words(size="model"):
            training = Training.begin(params, prepared, here, Checkpoints(place.folder, environment.checkpoints_kept))
        known = info(paths, environment, training, identity)
        with tracking.training(environment, resume_file=place.folder / "run", info=known) as run:
            with interruption.deferred() as interrupted, torch_errors.in_words(size="train.micro_batch_size"):
                loop(training, run, environment, interrupted)
            write_results(training, paths, identity)
            run_description.add_training(run, paths, known)
        place.clear()


def loop(training: Training, run: Run, environment: Environment, interrupted: Interruption) -> None:
    """Train to the end, or to the end of the step or batch of a validation in which a signal came. Raises Interrupted once that is saved."""
    try:
        for _ in watched(training, run, interrupted):
            training.save_when_due(environment)
            interrupted.pause()
    except Interrupted:
        training.save_now()
        saved = training.saver.saved_step
        after = (
            "there is no checkpoint: the same command begins anew"
            if saved is None
            else f"step {saved} is saved: the same command goes on there"
        )
        print(f"train: {after}", flush=True)
        raise
    finally:
        training.saver.wait()


def identify(paths: Paths, prepared: Prepared, here: Machine) -> run_identity.Inputs:
    """What decides the bytes of this training, by dvc.yaml's own list."""
    document = Document.read(paths.params).data
    listed = run_identity.dependencies("train", document, paths.top)
    return run_identity.Inputs(
        data=prepared.digest,
        code=run_identity.code_digest(listed, paths.top),
        lock=files.digest(paths.lock),
        params={name: document[name] for name in run_identity.sections("train", paths.top)},
        fingerprint=here.fingerprint(),
    )


def watched(training: Training, run: Run, interrupted: Interruption) -> Iterator[fit.Report]:
    """The reports, passed on to tracking and the terminal, with the rates that belong to neither the loop nor its result."""
    start_s, start_step = time.perf_counter(), training.state.step
    for report in training.reports(interrupted.pause):
        if report.metrics:
            elapsed_s, steps = time.perf_counter() - start_s, report.step - start_step
            rate = {"train/samples_per_second": steps * training.params.train.batch_size / elapsed_s}
            run.metrics(report.step, {**report.metrics, **rate, **training.here.memory()})
            start_s, start_step = time.perf_counter(), report.step
        if "valid/accuracy" in report.metrics:
            shown = ", ".join(
                f"{name} {report.metrics[name]:.4f}"
                for name in ("train/objective", "valid/loss", "valid/accuracy")
                if name in report.metrics
            )
            print(f"train: step {report.step} of {training.plan.num_steps}: {shown}", flush=True)
        yield report


def write_results(training: Training, paths: Paths, identity: run_identity.Inputs) -> None:
    """The model and what DVC tracks beside it; no time, path or run id is in them."""
    weights, step = training.exported()
    manifest = model_file.Manifest(
        params=training.params.model_dump(mode="json"),
        spec=training.prepared.spec,
        precision=training.state.used,
        step=step,
        switches=training.progress.switches,
        inputs=identity.digests,
        fingerprint=dict(identity.fingerprint),
    )
    files.sweep(paths.model.parent)
    model_file.export(paths.model, weights, manifest)
    results.write_history(paths.plots / "history.csv", training.progress.rows)
    results.write_metrics(paths.metrics / "train.json", training.progress, step)


def info(paths: Paths, environment: Environment, training: Training, identity: run_identity.Inputs) -> RunInfo:
    """Return what is known of this run before its first step."""
    more = {"inputs": identity.record, "data": str(training.images)}
    return run_description.of_training(paths, environment, prepared=read_record(paths.prepared).model_dump(mode="json"), more=more)
