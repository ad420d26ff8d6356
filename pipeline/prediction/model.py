"""`load_model`: from a model file, a run or a registered model to predictions, in Python."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch
from numpy.typing import NDArray

from pipeline.batch import Batch
from pipeline.engine import inference, model_file, precision, torch_errors
from pipeline.engine.model import Model
from pipeline.engine.model_file import Manifest
from pipeline.engine.precision import ChosenPrecision
from pipeline.io.untrusted import shown
from pipeline.paths import Paths
from pipeline.prediction import raw_inputs
from pipeline.prediction.protocols import Prediction, Predictor, Reader, Reading, Sample
from pipeline.refusal import Refusal
from pipeline.registry import INPUTS, TASKS, Registry
from pipeline.runtime import cgroup, machine
from pipeline.runtime.environment import Environment
from pipeline.tracking import model_source

BATCH_SIZE, TOP_K = 64, 3


def load_model(model: str | Path, *, device: str | None = None) -> "LoadedModel":
    """Return a trained model that is ready to predict.

    `model` is a model file, a run (the name of its journal, the local folder that records it, or its id in MLflow), or a model in MLflow:
    `models:/NAME@ALIAS`, `models:/NAME/VERSION` or `models:/MODEL_ID`. `device` is `auto`, `cpu`, `cuda` or `cuda:N`; the default is
    PIPELINE_DEVICE, or `auto`. Raises Refusal, a ValueError, if the model cannot be found or is damaged, or if this pipeline cannot predict
    with models of its task or kind of inputs.
    """
    environment = Environment.read()
    with model_source.located(str(model), Paths(), environment) as path:
        network, manifest = model_file.load(path)
    workers = environment.workers or cgroup.usable_cpus()
    return LoadedModel(network, manifest, machine.choose_device(device or environment.device), workers=workers)


class LoadedModel:
    """A trained model, with its preprocessing, on a device. It changes no global settings of torch."""

    def __init__(self, network: Model, manifest: Manifest, device: torch.device, *, workers: int) -> None:
        """Move the model to the device. Raises Refusal if there is no way to read its inputs, or no prediction for its task."""
        self.manifest, self.spec, self.device, self.workers = manifest, manifest.spec, device, workers
        inputs, targets = self.spec.inputs, self.spec.targets
        refuse_missing(INPUTS, inputs.kind, "reading", "files and values cannot be turned into such inputs")
        refuse_missing(
            TASKS, targets.kind, "prediction", "it has no answer for a single input. A language model writes text: use `generate`"
        )
        self.reader: Reader = INPUTS.module(inputs.kind, "reading").Reader(inputs)
        self.precision = precision_on(device, manifest.precision)
        self.network = network.to(device)

    def predict(self, inputs: Any, *, batch_size: int = BATCH_SIZE, top_k: int = TOP_K) -> Iterator[Prediction]:
        """Yield one prediction for each input, in order.

        `inputs` is one input or an iterable of inputs. For a model of images, an input is a path (a file, a folder, an archive, an `.npy`
        file), a PIL image, or an array uint8 (height, width, channels). For a model of texts, a `str` is a text, and a `pathlib.Path` is a
        file of which each line is a text, or a folder or archive of such files. Raises Refusal for the first input that cannot be read.
        """
        is_single = isinstance(inputs, str | Path) or not hasattr(inputs, "__iter__")
        readings = self.readings([inputs] if is_single else inputs)
        yield from self.predictions(readings, self.predictor(top_k), batch_size=batch_size, on_problem=refuse)

    def predictor(self, top_k: int) -> Predictor:
        """Return what interprets the model's outputs."""
        return cast("Predictor", TASKS.module(self.spec.targets.kind, "prediction").Predictor(self.spec, top_k=top_k))

    def readings(self, inputs: Iterable[Any]) -> Iterator[Reading]:
        """Read each input, in order. A path is named by itself. Any other input, such as an array, is named by its position, such as `[3]`."""
        for position, value in enumerate(inputs):
            if isinstance(value, Path) or (isinstance(value, str) and self.reader.strings_are_paths):
                with raw_inputs.opened([value], self.reader, workers=self.workers) as given:
                    yield from given.read()
                continue
            try:
                yield f"[{position}]", self.reader.row(value)
            except Refusal as refusal:
                yield f"[{position}]", refusal

    def predictions(
        self, readings: Iterable[Reading], predictor: Predictor, *, batch_size: int, on_problem: Callable[[str], None]
    ) -> Iterator[Prediction]:
        """Yield a prediction for each input that can be read, computed in batches. `on_problem` gets a message for each of the others."""
        samples = readable(readings, on_problem)
        while batch := list(islice(samples, batch_size)):
            names, rows = zip(*batch, strict=True)
            yield from predictor.predictions(names, self.outputs(rows))

    def outputs(self, rows: tuple[Any, ...]) -> NDArray[Any]:
        """Return the outputs, float32, for stored samples. Raises Refusal if a batch does not fit in memory."""
        batch = self.reader.batch(rows)
        on_device = Batch(batch.inputs.to(self.device))
        with torch_errors.with_remedies(size="batch size"), tf32_allowed():
            ((outputs, _),) = inference.predict(self.network, [(on_device, len(rows))], precision=self.precision, device=self.device)
        return outputs.cpu().numpy()


def readable(readings: Iterable[Reading], on_problem: Callable[[str], None]) -> Iterator[Sample]:
    for name, row in readings:
        if isinstance(row, Refusal):
            text = str(row)
            on_problem(text if text.startswith(f"{shown(name)}/") else f"{shown(name)}: {text}")
        else:
            yield name, row


def refuse(message: str) -> None:
    raise Refusal(message)


def refuse_missing(registry: Registry, kind: str, part: str, reason: str) -> None:
    """Raise Refusal if the folder `kind` in the package of the registry has no module `part`. `reason`, which ends the message, says what
    is impossible without it.
    """
    if find_spec(f"{registry.package}.{kind}.{part}") is None:
        raise Refusal(f"this model belongs to the {registry.noun} `{kind}`: {reason}")


def precision_on(device: torch.device, trained: ChosenPrecision) -> ChosenPrecision:
    """Return the precision to predict in: that of the training where the device has it in hardware.

    Otherwise, a model that was trained with autocast is predicted in float32, the precision of its weights; autocast on a CPU would take
    ten times as long. A model trained in `bf16-true` has bf16 weights and is predicted in it on a CPU too. Raises Refusal if a GPU cannot
    compute in it.
    """
    if device.type == "cpu":
        return "fp32" if trained in precision.DTYPES else trained
    try:
        return precision.choose(trained, device)
    except Refusal:
        if trained in precision.DTYPES:
            return "fp32"
        raise Refusal(f"this GPU cannot compute in the precision of the model, {trained}: set PIPELINE_DEVICE=cpu") from None


@contextmanager
def tf32_allowed() -> Iterator[None]:
    """Allow TF32 as in training and evaluation, and restore the settings afterwards: they belong to the caller's process."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    try:
        matmul.allow_tf32 = cudnn.allow_tf32 = True
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
