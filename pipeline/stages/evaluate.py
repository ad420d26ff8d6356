"""The stage evaluate: scores the model file on the test split and writes metrics, tables and figures."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from pipeline.data import loader
from pipeline.data.prepared import Prepared, Split, read_record
from pipeline.engine import model_file, precision, results, score, torch_errors, tta
from pipeline.engine.classifier import Classifier
from pipeline.engine.model_file import Manifest
from pipeline.io import files
from pipeline.params.evaluate import EvaluateParams, EvaluateSettings
from pipeline.paths import Paths
from pipeline.raw_dataset import TEST
from pipeline.refusal import Refusal
from pipeline.reports import metrics, recorded, tables
from pipeline.reports.calibration import Calibration
from pipeline.reports.predictions import Predictions
from pipeline.runtime import machine
from pipeline.runtime.environment import Environment
from pipeline.runtime.machine import Machine
from pipeline.spec import Spec
from pipeline.tracking import run as tracking
from pipeline.tracking import run_description


def evaluate(params: EvaluateParams, paths: Paths, environment: Environment) -> None:
    """Score the model file on the test split, write metrics, tables and figures, and report to tracking.

    Raises Refusal where the model was trained on other classes or another image shape than the prepared data has.
    """
    here = Machine.claim(environment)
    classifier, manifest = model_file.load(paths.model)
    prepared = Prepared.open(paths.prepared)
    refuse_other_data(manifest.spec, prepared.spec, model=paths.model, data=paths.prepared)
    logits, scores = judge(classifier, manifest, prepared, here, params)
    split = prepared.split(TEST)
    files.write_json(paths.metrics / "evaluate.json", recorded.labelled(scores, paths.model))
    draw(Predictions.of(logits, split.targets), split, params.evaluate, paths, classes=prepared.spec.classes)
    info = run_description.of_evaluation(paths, environment, prepared=read_record(paths.prepared).model_dump(mode="json"))
    with tracking.addition(environment, paths.model, info=info) as run:
        run_description.add_evaluation(run, paths, info, step=manifest.step, scores=scores)
    if not environment.summary_follows:
        print(recorded.result_line(scores), flush=True)


def judge(
    classifier: Classifier, manifest: Manifest, prepared: Prepared, here: Machine, params: EvaluateParams
) -> tuple[NDArray[np.float32], dict[str, Any]]:
    """Return the float32 logits (n, classes) of the test split, in its order, and the scores for `metrics/evaluate.json`.

    The logits are always those of the unmodified images; with test-time augmentation, the scores also hold its results.
    Writes no files. Raises Refusal where the settings do not fit the number of classes.
    """
    params.evaluate.refuse_rank_beyond(prepared.spec.num_classes)
    split = prepared.split(TEST)
    machine.set_determinism(manifest.train_params.train.deterministic)
    wish, used = params.evaluate.test_time_augmentation, precision.choose(manifest.precision, here.device)
    with torch_errors.in_words(size="evaluate.batch_size"):
        logits = predict(classifier, split, here, used=used, batch_size=params.evaluate.batch_size)
        scores = metrics.evaluate(logits, split.targets, prepared.spec.classes, params.evaluate)
        if wish != "none":
            averaged = predict(tta.Averaged(classifier, wish), split, here, used=used, batch_size=params.evaluate.batch_size)
            scores |= metrics.augmented(averaged, split.targets, wish)
    return logits, scores


def refuse_other_data(expected: Spec, found: Spec, *, model: Path, data: Path) -> None:
    """Raise Refusal unless the model and the prepared data have the same image shape and classes."""
    if (expected.shape, expected.classes) != (found.shape, found.classes):
        raise Refusal(
            f"{model}: was trained on {expected.num_classes} classes of {expected.shape}, {data} holds "
            f"{found.num_classes} classes of {found.shape}: run `dvc repro`"
        )


def predict(classifier: nn.Module, split: Split, here: Machine, *, used: precision.Used, batch_size: int) -> NDArray[np.float32]:
    """Return the float32 logits (n, classes) of a split, in its order."""
    images = loader.Images(split, here.device)
    batches = loader.scoring(images, batch_size=min(batch_size, len(images)))
    parts = score.predict(classifier.to(here.device), batches, used=used, device=here.device)
    return np.concatenate([logits.cpu().numpy() for logits, _ in parts])


def draw(predictions: Predictions, split: Split, settings: EvaluateSettings, paths: Paths, *, classes: tuple[str, ...]) -> None:
    """Write the confusion and reliability tables, and plot them, the training history and the most confident mistakes."""
    from pipeline.reports.figures import (
        confusion,
        history,
        mistakes,
        reliability,
    )  # imported late: matplotlib takes a second, which an error should not cost

    calibration = Calibration.of(predictions.confidence, predictions.correct, settings.calibration_bins)
    targets, predicted = predictions.targets, predictions.predicted
    tables.write_confusion(paths.plots / "confusion.csv", targets=targets, predicted=predicted, classes=classes)
    tables.write_reliability(paths.plots / "reliability.csv", calibration)
    confusion.draw(paths.plots / "confusion.png", targets=targets, predicted=predicted, classes=classes)
    reliability.draw(paths.plots / "reliability.png", calibration)
    history.draw(paths.plots / "history.png", results.read_history(paths.plots / "history.csv"))
    mistakes.draw(paths.plots / "mistakes.png", images=split.inputs, predictions=predictions, classes=classes, most=settings.mistakes)
