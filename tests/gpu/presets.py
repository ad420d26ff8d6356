"""The presets as short trainings on random data, to count what their steps launch."""

from typing import Any

import numpy as np

from pipeline.core.params import from_data
from pipeline.core.prepared import Prepared, Split
from pipeline.core.spec import Spec
from pipeline.inputs.table.description import NumberColumn, TableInputs
from pipeline.tasks.classification.targets import ClassTargets
from pipeline.train.params import TrainParams
from tests import texts
from tests.conftest import preset
from tests.specs import image_spec, text_spec

STEPS, BATCH_SIZE = 14, 64
COMMON = {
    "train.steps": STEPS,
    "train.epochs": None,
    "train.report_every_steps": STEPS,
    "train.validate_every_steps": STEPS,
    "train.batch_size": BATCH_SIZE,
    "train.micro_batch_size": BATCH_SIZE,
    "train.compile": "off",
}


def images(shape: tuple[int, int, int], samples: int = 1100) -> Prepared:
    """Return random images of ten classes."""
    random = np.random.default_rng(0)

    def split(count: int) -> Split:
        return Split(random.integers(0, 256, (count, *shape), dtype=np.uint8), np.arange(count) % 10)

    spec = image_spec(shape=shape, classes=tuple("abcdefghij"), mean=(0.4,) * shape[2], std=(0.3,) * shape[2])
    return Prepared(spec, "images", {"train": split(samples), "valid": split(130)})


def words(length: int, classes: tuple[str, ...] | None, samples: int = 800) -> Prepared:
    """Return random texts of the length of a preset: of `classes`, or without them for a language model."""
    random = np.random.default_rng(0)
    spec = text_spec(length=length, letters="abcdefghijklmnopqrstuvwxyz", classes=classes)

    def split(count: int) -> Split:
        if classes is None:
            return Split(random.integers(3, 26, (count, length), dtype=np.int32), np.zeros((count, 0), np.uint8), None, windows=True)
        rows = random.integers(3, 26, (count, length), dtype=np.int32)
        return Split(rows, np.arange(count) % len(classes), np.full(count, length))

    return Prepared(spec, "texts", {"train": split(samples), "valid": split(80)})


def rows(columns: int, samples: int = 800) -> Prepared:
    """Return random rows of numbers with two classes."""
    random = np.random.default_rng(0)
    names = [NumberColumn(kind="number", name=str(number), missing=False, mean=0.0, std=1.0) for number in range(columns)]
    spec = Spec(inputs=TableInputs(columns=tuple(names)), targets=ClassTargets(classes=("a", "b")))
    splits = {
        name: Split(random.normal(size=(count, columns)), np.arange(count) % 2) for name, count in (("train", samples), ("valid", 80))
    }
    return Prepared(spec, "rows", splits)


CIFAR, DIGITS = images((32, 32, 3)), images((8, 8, 1))


PRESETS: dict[str, tuple[Prepared, bool]] = {
    "digits": (DIGITS, True),
    **{f"cifar10-{name}": (CIFAR, True) for name in ("mlp", "cnn", "resnet", "mobilenet", "speedrun")},
    "trec-lstm": (words(40, texts.CLASSES), False),
    "trec-transformer": (words(40, texts.CLASSES), True),
    "trec-ngrams": (words(40, texts.CLASSES), True),
    "shakespeare-lstm": (words(128, None), False),
    "shakespeare-transformer": (words(128, None), True),
    "dates-transformer": (texts.pairs(), True),
    "table": (rows(30), True),
}
"""Random data for each preset but cifar10-finetune, image-folder and code-transformer, and whether cuDNN is on. The fake cuDNN has no recurrent networks."""
PRECISIONS = {
    "fp32": {"train.precision": "fp32"},
    "bf16": {"train.precision": "bf16"},
    "fp16": {"train.precision": "fp16"},
    "bf16, skip": {"train.precision": "bf16", "train.on_nonfinite": "skip"},
}
COUNTED = [
    *((name, precision) for name in PRESETS for precision in ("bf16", "fp16") if precision == "bf16" or not name.endswith("lstm")),
    *((name, precision) for name in ("digits", "trec-transformer") for precision in ("fp32", "bf16, skip")),
    *((name, "bf16, skip") for name in ("cifar10-mobilenet", "cifar10-speedrun")),
]
"""The presets and precisions whose launches are counted: the precision adds the same operations to each network."""


def params_of(changes: dict[str, Any], base: str = "digits") -> TrainParams:
    return from_data(preset(COMMON | changes, base), TrainParams, "test")
