"""`load_model`: from a model file, a run or a registered model to predictions, in Python."""

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.core import limits
from pipeline.core.environment import DEVICE, DEVICE_NAMES, Environment, Paths
from pipeline.core.refusal import Refusal, counted
from pipeline.core.registry import READERS, Registry
from pipeline.core.section import Column
from pipeline.core.untrusted import shown
from pipeline.evaluate.params import WIDEST
from pipeline.inference import machine, model_file, networks, precision, torch_errors
from pipeline.inference.batch import Batch
from pipeline.inference.model_file import Manifest
from pipeline.inference.networks import Model
from pipeline.inference.precision import ChosenPrecision
from pipeline.prepare.reading import streams
from pipeline.runs import find
from pipeline.tools.compare.models import Member, averaged
from pipeline.tools.predict.protocols import Chunk, LineReader, Prediction, Predictor, Reader, Reading, RowReader
from pipeline.tools.predict.raw_inputs import RawInputs, TableColumn

PREDICTORS = Registry("pipeline.tasks", "task", "predict")
BATCH_SIZE, ROWS_BATCH_SIZE, TOP_K = 64, 1024, 3


def load_model(
    model: str | Path, *, device: str | None = None, column: Column | None = None, encoding: str = streams.UTF8
) -> "LoadedModel":
    """Return a trained model that is ready to predict.

    `model` is the path of a model file, a run, a model in MLflow (`models:/NAME@ALIAS`, `models:/NAME/VERSION` or `models:/MODEL_ID`), a DVC
    experiment or a git revision. A run is given by its id in MLflow, or by the name of its journal, the local folder that records the run.

    `column` is the column of the inputs in tables, by its name or by its number from 1; None for that of the training. `encoding` is that of
    files of text without a byte order mark. `device` is `auto`, `cpu`, `cuda` or `cuda:N`. If it is None, PIPELINE_DEVICE is used, or `auto` if
    that is not set. Raises Refusal, a ValueError, if the model cannot be found or is damaged, if the device is unavailable, or if this
    pipeline has no predictions for the model's task or kind of inputs.
    """
    environment = Environment.read()
    if device is not None and not re.fullmatch(DEVICE, device):
        raise Refusal(f"device: {DEVICE_NAMES}, not {device!r}")
    try:
        streams.known_encoding(encoding)
    except ValueError as error:
        raise Refusal(f"encoding: {shown(encoding, 60)} {error}") from None
    with find.located(str(model), Paths(), environment) as found:
        network, manifest = model_file.load(found.path, complete=True)
    chosen, workers = machine.choose_device(device or environment.device), environment.workers or limits.usable_cpus()
    return LoadedModel(network, manifest, chosen, workers, column, encoding)


def load_ensemble(models: Sequence[str | Path], **options: Any) -> "LoadedModel":
    """Return several models as one that predicts the mean of their probabilities. `options` are those of `load_model`.

    Raises Refusal as `load_model` does, and if the models differ in their task, classes, form of inputs or precision.
    """
    if not models:
        raise Refusal("load_ensemble: names no model: give one at least")
    loaded = [load_model(model, **options) for model in models]
    first = loaded[0]
    first.network = averaged([Member(shown(name), each.network, each.manifest) for name, each in zip(models, loaded, strict=True)])
    return first


class LoadedModel:
    """A trained model, with its preprocessing, on one device. Predicting leaves the global settings of torch as they were."""

    def __init__(
        self, network: Model, manifest: Manifest, device: torch.device, workers: int, column: Column | None, encoding: str
    ) -> None:
        """Move the model to the device. `workers` is the number of threads that read files. `column` and `encoding` are those of `load_model`.

        Raises Refusal if this pipeline cannot read the model's kind of inputs, if it has no predictions for the model's task, as for a
        language model, or if the GPU does not support the model's precision.
        """
        self.manifest, self.spec, self.device = manifest, manifest.spec, device
        inputs, targets = self.spec.inputs, self.spec.targets
        if targets.stored == "windows":
            raise Refusal("this is a language model, which has no prediction for a single input: use `python -m pipeline generate`")
        for registry, kind in ((READERS, inputs.kind), (PREDICTORS, targets.kind)):
            if kind not in registry.names:
                raise Refusal(f"`predict` does not support the {registry.noun} `{kind}` of this model: it has no module predict.py")
        self.task = PREDICTORS.module(targets.kind)
        self.reader: Reader = READERS.module(inputs.kind).Reader(inputs)
        if column is not None and isinstance(self.reader, RowReader):
            problem = f"this model reads {counted(len(self.reader.columns), 'column')} by their names"
            raise Refusal(f"column: {problem}: leave {shown(column, 60)} out")
        if isinstance(self.reader, LineReader):
            self.reader.encoding = encoding
        self.raw_inputs = RawInputs(self.reader, TableColumn(inputs.column, column, encoding), workers)
        self.precision = precision_on(device, manifest.precision)
        self.network = network.to(device)

    def predict(self, inputs: Any, *, batch_size: int | None = None, top_k: int = TOP_K, beam: int = 1) -> Iterator[Prediction]:
        """Yield one prediction for each input, in order.

        `inputs` is one input or an iterable of inputs. For a model of images, an input is a path (a file, a table, a folder, an archive, an
        `.npy` file), a PIL image, or an array uint8 (height, width, channels). An array that is passed as `inputs` is an iterable of images, so
        pass a single image as `[array]`. For a model of texts, a `str` is a text, and a `pathlib.Path` is a file of which each line is a
        text, a table, or a folder or archive of such files. For a model of tables, an input is the path of a table, or a row as a dict from
        the names of columns to values; `inputs` may be a DataFrame of pandas.

        `batch_size` is the number of inputs in a forward pass, by default 64, and 1024 for rows of tables. `top_k` is the number of classes in
        a prediction, most likely first, and `beam` the width of the beam search of a model that writes texts. Raises Refusal for the first
        input that cannot be read. Warns of cells with a category that train does not have, after the last prediction.
        """
        before = self.reader.note()
        if hasattr(inputs, "columns") and hasattr(inputs, "to_dict"):
            inputs = self.rows_of(inputs)
        is_single = isinstance(inputs, str | Path | Mapping) or not hasattr(inputs, "__iter__")
        predictor = self.predictor(top_k)
        for chunk, outputs in self.scored(self.readings([inputs] if is_single else inputs), batch_size=batch_size, beam=beam):
            yield from predictor.predictions(chunk.names, outputs)
        if isinstance(self.reader, RowReader) and (note := self.reader.note()) != before:
            warnings.warn(note, stacklevel=2)

    def rows_of(self, frame: Any) -> list[dict[Any, Any]]:
        """Return the rows of a DataFrame of pandas. Raises Refusal if the model reads no rows, or if one of its columns occurs twice."""
        if not isinstance(self.reader, RowReader):  # iterating over a frame yields the names of its columns
            raise Refusal("inputs: is a DataFrame, but this model does not read rows: give one of its columns, as by `frame[NAME]`")
        if twice := [column for column in self.reader.columns if list(frame.columns).count(column) > 1]:
            raise Refusal(f"inputs: has several columns called {shown(twice[0], 60)}: remove or rename all but one")
        return frame.to_dict("records")  # type: ignore[no-any-return]

    def predictor(self, top_k: int) -> Predictor:
        """Return the object that turns the model's outputs into predictions. `top_k` is the number of classes in a prediction."""
        refuse_below_one("top_k", top_k)
        return cast("Predictor", self.task.Predictor(self.spec, top_k=top_k))

    def readings(self, inputs: Iterable[Any]) -> Iterator[Reading | Chunk]:
        """Yield the name of each input, in order, and the input as a stored sample, or a Refusal if it cannot be read.

        The name of an input from a path begins with this path. The name of any other input, such as an array, is its position, such as
        `[3]`.
        """
        for position, value in enumerate(inputs):
            if isinstance(value, Path) or (isinstance(value, str) and self.reader.strings_are_paths):
                yield from self.raw_inputs.read([value])
                continue
            try:
                yield f"[{position}]", self.reader.row(value)
            except Refusal as refusal:
                yield f"[{position}]", refusal

    def scored(
        self, readings: Iterable[Reading | Chunk], *, batch_size: int | None, beam: int, on_problem: Callable[[str], None] | None = None
    ) -> Iterator[tuple[Chunk, NDArray[Any]]]:
        """Yield the inputs that can be read, in batches, and the outputs for them. Call `on_problem` with a message for each other input; if it
        is None, raise Refusal for the first of them.

        `readings` are the inputs, as `self.readings` yields them. Raises Refusal if an output is not finite.
        """
        batch_size = (ROWS_BATCH_SIZE if isinstance(self.reader, RowReader) else BATCH_SIZE) if batch_size is None else batch_size
        refuse_below_one("batch_size", batch_size)
        if not 1 <= beam <= WIDEST or (beam > 1 and not self.writes):
            raise Refusal(f"beam: is {beam}: write a number from 1 to {WIDEST}, and 1 for a model that writes no texts")
        for batch in batches(readings, batch_size, on_problem):
            outputs = self.outputs(batch.samples, beam)
            if not (finite := np.isfinite(outputs).reshape(len(outputs), -1).all(axis=1)).all():
                name = batch.names[int(np.argmin(finite))]
                remedy = "its training diverged; lower optimizer.learning_rate, or set a lower train.clip_norm, and train again"
                raise Refusal(f"{shown(name)}: the model's outputs are not finite: {remedy}")
            yield batch, outputs

    @property
    def writes(self) -> bool:
        """True if the model writes texts: the predictions of its task are not the outputs of one forward pass."""
        return hasattr(self.task, "write")

    def outputs(self, rows: Sequence[Any], beam: int) -> NDArray[Any]:
        """Return the model's outputs for one batch, a float32 array, or float64 for numbers; of a model that writes texts, their tokens (n, length).

        `rows` are stored samples, the form in which `prepare` stores inputs. Raises Refusal if the batch does not fit in memory.
        """
        inputs = self.reader.batch(rows).inputs.to(self.device)
        with torch_errors.with_remedies(size="batch size"), tf32_allowed():
            if self.writes:
                return cast("NDArray[Any]", self.task.write(self.network, inputs, self.spec.inputs, beam=beam))
            ((outputs, _),) = networks.predict(self.network, [(Batch(inputs), len(rows))], precision=self.precision, device=self.device)
        return outputs.cpu().numpy()


def refuse_below_one(name: str, number: int) -> None:
    if number < 1:
        raise Refusal(f"{name}: is {number}: write 1 or more")


def batches(readings: Iterable[Reading | Chunk], size: int, on_problem: Callable[[str], None] | None) -> Iterator[Chunk]:
    """Yield the inputs that can be read, at most `size` at a time; rows of a table are not mixed with others."""
    names, samples = list[str](), list[Any]()
    for reading in readings:
        if isinstance(reading, Chunk):
            yield from (*Chunk(names, samples, {}).parts(size), *reading.parts(size))
            names, samples = [], []
        elif isinstance(reading[1], Refusal):
            message = reading[1].named(shown(reading[0]))
            if on_problem is None:
                raise Refusal(message)
            on_problem(message)
        else:
            names.append(reading[0])
            samples.append(reading[1])
            if len(names) == size:
                yield Chunk(names, samples, {})
                names, samples = [], []
    yield from Chunk(names, samples, {}).parts(size)


def precision_on(device: torch.device, trained: ChosenPrecision) -> ChosenPrecision:
    """Return the precision in which to predict on `device`. `trained` is the precision of the training.

    A GPU that supports `trained` predicts in it. Otherwise, a model that was trained with autocast is predicted in float32, the precision of
    its weights: also on every CPU, because autocast would take ten times as long there. Raises Refusal if a GPU does not support `bf16-true`.
    """
    uses_autocast = trained in precision.DTYPES
    if device.type == "cpu":
        return "fp32" if uses_autocast else trained
    try:
        return precision.choose(trained, device)
    except Refusal:
        if not uses_autocast:
            raise
        return "fp32"


@contextmanager
def tf32_allowed() -> Iterator[None]:
    """Within this context, allow TF32 on GPUs, as training and evaluation do. Afterwards, restore the settings for the caller's own code."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    try:
        matmul.allow_tf32 = cudnn.allow_tf32 = True
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
