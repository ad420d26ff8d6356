"""Trainings on a GPU that executes nothing: what PyTorch's CUDA code does without its kernels. test_fake_gpu.py runs this file.

They show wrong devices, dtypes and strides, missing kernels, operations without a deterministic form, waits of the host, allocations, and the
operations that a step puts into streams. They cannot show values, time, what cuDNN chooses, cuDNN's recurrent networks, NCCL or CUDA graphs.
"""

import contextlib
import csv
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.core.params import from_data
from pipeline.core.prepared import Prepared, Split
from pipeline.inference import precision
from pipeline.inference.batches import loader
from pipeline.train.engine import metrics
from pipeline.train.params import TrainParams
from pipeline.train.tasks import classification, language_modeling
from pipeline.train.training import Training
from tests import texts
from tests.conftest import preset
from tests.gpu.fake import library
from tests.gpu.fake.library import Counts
from tests.laws import test_resuming as resuming
from tests.specs import image_spec, text_spec

if not hasattr(library.gpu(), "fake_gpu_clear"):
    pytest.skip("test_fake_gpu.py runs these with the library of a GPU that executes nothing", allow_module_level=True)

STEPS = 12
FIRST_STEADY, LAST_STEADY = 4, 10
"""The steps that must not wait or allocate: not the first, which make what is made once, and not the last, which reports."""
SAVED = 7
BATCH_SIZE = 64
COMMON = {
    "train.steps": STEPS,
    "train.epochs": None,
    "train.report_every_steps": STEPS,
    "train.validate_every_steps": STEPS,
    "train.batch_size": BATCH_SIZE,
    "train.micro_batch_size": BATCH_SIZE,
    "train.compile": "off",
}
Begin = Callable[..., Training]


def images(shape: tuple[int, int, int], samples: int = 1100) -> Prepared:
    """Return random images of ten classes."""
    random = np.random.default_rng(0)

    def split(count: int) -> Split:
        return Split(random.integers(0, 256, (count, *shape), dtype=np.uint8), np.arange(count) % 10)

    spec = image_spec(shape=shape, classes=tuple("abcdefghij"), mean=(0.4,) * shape[2], std=(0.3,) * shape[2])
    return Prepared(spec, "images", {"train": split(samples), "valid": split(130)})


def words(length: int, classes: tuple[str, ...] | None) -> Prepared:
    """Return random texts of the length of a preset: of `classes`, or without them for a language model."""
    random = np.random.default_rng(0)
    spec = text_spec(length=length, letters="abcdefghijklmnopqrstuvwxyz", classes=classes)

    def split(count: int) -> Split:
        if classes is None:
            return Split(random.integers(3, 26, (count, length), dtype=np.int32), np.zeros((count, 0), np.uint8), None, per_token=True)
        rows = random.integers(3, 26, (count, length), dtype=np.int32)
        return Split(rows, np.arange(count) % len(classes), np.full(count, length))

    return Prepared(spec, "texts", {"train": split(800), "valid": split(80)})


CIFAR, DIGITS = images((32, 32, 3)), images((8, 8, 1))


@pytest.fixture(autouse=True)
def without_values(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let reports have numbers, although all that is read from the GPU is 0, also the number of targets and characters."""
    score = metrics.score

    def scored(model, batches, objective, **options) -> dict[str, float]:
        with contextlib.suppress(ZeroDivisionError):
            score(model, batches, objective, **options)
        return {"loss": 0.5, **objective.averages({}, 1)}

    def averages(*_: object) -> dict[str, float]:
        return dict.fromkeys(("perplexity", "bits_per_character", "bits_per_byte", "accuracy"), 0.5)

    monkeypatch.setattr(metrics, "score", scored)
    monkeypatch.setattr(language_modeling.Objective, "averages", averages)
    monkeypatch.setattr(classification.Objective, "averages", lambda *_: {"accuracy": 0.5})
    warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
    yield
    torch.backends.cudnn.enabled = True


def steps(training: Training) -> list[Counts]:
    """Train to the end. Return what each step between two reports asks of the GPU. A steady step that waits or allocates is an error."""
    found = []
    reports = training.reports()
    for number in range(training.state.step + 1, STEPS):
        library.clear()
        torch.cuda.set_sync_debug_mode("error" if number >= FIRST_STEADY else "default")
        try:
            next(reports)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        found.append(library.counts())
        if number == SAVED:
            assert training.save_now()
    assert len(list(reports)) == 1
    return found


def steady(found: list[Counts]) -> Counts:
    """Return the counts of the steady steps, which must be equal, but for those of a new block of batches."""
    chosen = found[FIRST_STEADY - 1 : LAST_STEADY]
    assert [each.waits for each in chosen] == [0] * len(chosen)
    assert [each.allocations + each.pinned_allocations for each in chosen] == [0] * len(chosen)
    least = min(chosen, key=lambda each: each.launches)
    assert sum(each.launches == least.launches for each in chosen) > len(chosen) / 2, [each.launches for each in chosen]
    return least


def rehearse(begin: Begin, params: TrainParams, data: Prepared, *, cudnn: bool = True) -> Counts:
    """Train, save, validate, and resume from the saved step to the end. Return what a steady step asks of the GPU."""
    torch.backends.cudnn.enabled = cudnn
    found = steady(steps(begin(params, "work", data)))
    resumed = begin(params, "work", data)
    assert resumed.state.step == SAVED
    list(resumed.reports())
    return found


def params_of(changes: dict[str, Any], base: str = "digits") -> TrainParams:
    return from_data(preset(COMMON | changes, base), TrainParams, "test")


def bare(training: Training) -> Counts:
    """Return what a step of a loop without the pipeline asks of the GPU, on a batch that is ready.

    It has the same network, precision, loss, gradient scaler, clipping and optimizer, and no metrics, no EMA and no augmentation.
    """
    state, settings = training.state, training.params.train
    part = next(next(training.batches(0)).parts(BATCH_SIZE))
    inputs = state.model.preprocessing(part.inputs)
    inputs = precision.as_bf16(inputs) if state.model.bf16_weights else inputs
    assert part.targets is not None
    targets = part.targets if part.targets.is_floating_point() else part.targets.flatten()

    def step() -> None:
        state.optimizer.zero_grad()
        with precision.autocast(state.precision, state.device):
            outputs = state.model.network(inputs).flatten(0, -2)
            loss = torch.nn.functional.cross_entropy(outputs, targets, label_smoothing=settings.label_smoothing)
        state.scaler.scale(loss).backward()
        state.scaler.unscale_(state.optimizer)
        if settings.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(state.parameters, settings.clip_norm)
        state.scaler.step(state.optimizer)
        state.scaler.update()

    for _ in range(FIRST_STEADY):
        step()
    library.clear()
    step()
    return library.counts()


PRESETS: dict[str, tuple[Prepared, bool]] = {
    "digits": (DIGITS, True),
    **{f"cifar10-{name}": (CIFAR, True) for name in ("mlp", "cnn", "resnet", "mobilenet", "speedrun")},
    "trec-lstm": (words(40, texts.CLASSES), False),
    "trec-transformer": (words(40, texts.CLASSES), True),
    "shakespeare-lstm": (words(128, None), False),
    "shakespeare-transformer": (words(128, None), True),
}
"""The data of each preset that trains without a download, and whether cuDNN is on. The fake cuDNN has no recurrent networks."""
PRECISIONS = {
    "fp32": {"train.precision": "fp32"},
    "bf16": {"train.precision": "bf16"},
    "fp16": {"train.precision": "fp16"},
    "bf16, skip": {"train.precision": "bf16", "train.on_nonfinite": "skip"},
}
TABLE = Path(os.environ.get("FAKE_GPU_TABLE", os.devnull))


@pytest.fixture(scope="module")
def table() -> Iterator[list[dict[str, str | int]]]:
    """Return the rows of the table of launches, which are written to the file TABLE at the end."""
    rows: list[dict[str, str | int]] = []
    yield rows
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["preset", "precision", "pipeline", "bare loop"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.parametrize("precision_name", PRECISIONS)
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_trains_with_few_more_launches_than_a_bare_loop(begin: Begin, table, name: str, precision_name: str) -> None:
    data, cudnn = PRESETS[name]
    params = params_of(PRECISIONS[precision_name], name)
    ours, least = rehearse(begin, params, data, cudnn=cudnn).launches, bare(begin(params, "bare", data)).launches
    table.append({"preset": name, "precision": precision_name, "pipeline": ours, "bare loop": least})
