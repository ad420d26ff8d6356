"""The numbers that the stage evaluate would write, computed anew and written nowhere."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline import machine
from pipeline.collection import TEST
from pipeline.data.prepared import Prepared
from pipeline.engine import model_file
from pipeline.machine import Machine
from pipeline.params.evaluate import EvaluateParams
from pipeline.refusal import Refusal
from pipeline.reports import metrics
from pipeline.stages import evaluate


def score(model: Path, prepared: Prepared, here: Machine, params: EvaluateParams) -> dict[str, Any]:
    """Of the test split."""
    classifier, manifest = model_file.load(model)
    machine.set_determinism(manifest.train_params.train.deterministic)
    split = prepared.split(TEST)
    logits = evaluate.predict(classifier, split, here, manifest, params.evaluate.batch_size)
    return metrics.evaluate(logits, split.targets, prepared.spec.classes, params.evaluate, params.seed)


def recorded(path: Path) -> Mapping[str, Any]:
    """What the stage evaluate wrote."""
    try:
        scores = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Refusal(f"{path}: is missing: run `dvc repro`") from None
    except ValueError:
        scores = None
    if not isinstance(scores, dict):
        raise Refusal(f"{path}: was not written by this pipeline: run `dvc repro -f evaluate`")
    return scores
