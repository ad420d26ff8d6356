"""The stage train: trains on `data/prepared/` and writes `models/model.safetensors`."""

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
    """Train from scratch, or resume from the last whole checkpoint of a training with the same inputs."""
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
    """Run all steps, saving a checkpoint whenever one is due.

    After a signal, finish the current step or validation batch, save a checkpoint, and raise Interrupted.
    """
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
    """Return the inputs that determine the exported bytes; code and parameters are those that dvc.yaml lists for train."""
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
    """Yield the reports of the training, after sending their metrics to tracking and the terminal.

    Samples per second and memory use are added for tracking only, because they differ between runs of the same training.
    """
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
    """Write the model file, `history.csv` and `train.json`. They hold no time, path or run id, so equal trainings write equal bytes."""
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
    """Return the parameters, datasets and provenance that tracking records at the start of a run."""
    more = {"inputs": identity.record, "data": str(training.images)}
    return run_description.of_training(paths, environment, prepared=read_record(paths.prepared).model_dump(mode="json"), more=more)
