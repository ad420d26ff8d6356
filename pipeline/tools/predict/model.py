"""`load_model`: from a model file, a run or a registered model to predictions, in Python."""

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
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
from pipeline.runs import find
from pipeline.tools.compare.paired import Member, averaged
from pipeline.tools.predict import raw_inputs
from pipeline.tools.predict.protocols import Chunk, Prediction, Predictor, Reader, Reading, RowReader, TableColumn

PREDICTORS = Registry("pipeline.tasks", "task", "predict")
BATCH_SIZE, ROWS_BATCH_SIZE, TOP_K = 64, 1024, 3


def load_model(model: str | Path, *, device: str | None = None, column: Column | None = None) -> "LoadedModel":
    """Return a trained model that is ready to predict.

    `model` is the path of a model file, a run, a model in MLflow (`models:/NAME@ALIAS`, `models:/NAME/VERSION` or `models:/MODEL_ID`), a DVC
    experiment or a git revision. A
    run is given by its id in MLflow, or by the name of its journal, the local folder that records the run.

    `column` is the column of the inputs in tables, by its name or by its number from 1; None for that of the training.
    `device` is `auto`, `cpu`, `cuda` or `cuda:N`. If it is None, PIPELINE_DEVICE is used, or `auto` if that is not set. Raises Refusal, a
    ValueError, if the model cannot be found or is damaged, if the device is unavailable, or if this pipeline has no predictions for the
    model's task or kind of inputs.
    """
    environment = Environment.read()
    if device is not None and not re.fullmatch(DEVICE, device):
        raise Refusal(f"device: {DEVICE_NAMES}, not {device!r}")
    with find.located(str(model), Paths(), environment) as found:
        network, manifest = model_file.load(found.path, complete=True)
    workers = environment.workers or limits.usable_cpus()
    return LoadedModel(network, manifest, machine.choose_device(device or environment.device), workers=workers, column=column)


def load_ensemble(models: Sequence[str | Path], *, device: str | None = None, column: Column | None = None) -> "LoadedModel":
    """Return several models as one that predicts the mean of their probabilities. `load_model` explains the arguments.

    Raises Refusal as `load_model` does, and if the models differ in their task, classes, form of inputs or precision.
    """
    if not models:
        raise Refusal("load_ensemble: names no model: give one at least")
    loaded = [load_model(model, device=device, column=column) for model in models]
    first = loaded[0]
    first.network = averaged([Member(shown(name), each.network, each.manifest) for name, each in zip(models, loaded, strict=True)])
    return first


class LoadedModel:
    """A trained model, with its preprocessing, on one device. Predicting leaves the global settings of torch as they were."""

    def __init__(self, network: Model, manifest: Manifest, device: torch.device, *, workers: int, column: Column | None = None) -> None:
        """Move the model to the device. `workers` is the number of threads that read files. `column` is that of `load_model`.

        Raises Refusal if this pipeline cannot read the model's kind of inputs, if it has no predictions for the model's task, as for a
        language model, or if the GPU does not support the model's precision.
        """
        self.manifest, self.spec, self.device, self.workers = manifest, manifest.spec, device, workers
        inputs, targets = self.spec.inputs, self.spec.targets
        refuse_missing(READERS, inputs.kind, "files and values cannot be turned into such inputs")
        if targets.stored == "windows":
            raise Refusal("this is a language model, which has no prediction for a single input: use `python -m pipeline generate`")
        refuse_missing(PREDICTORS, targets.kind, "this task has no prediction for a single input")
        self.write = getattr(PREDICTORS.module(targets.kind), "write", None)
        """The function that writes texts, of a task that has one: its predictions are not the outputs of one forward pass."""
        self.reader: Reader = READERS.module(inputs.kind).Reader(inputs)
        if column is not None and isinstance(self.reader, RowReader):
            problem = f"this model reads {counted(len(self.reader.columns), 'column')} by their names"
            raise Refusal(f"column: {problem}: leave {shown(column, 60)} out")
        self.column = TableColumn(inputs.column, column)
        self.precision = precision_on(device, manifest.precision)
        self.network = network.to(device)

    beam = 1
    """Width of the beam search of a model that writes texts."""

    def predict(self, inputs: Any, *, batch_size: int | None = None, top_k: int = TOP_K, beam: int = 1) -> Iterator[Prediction]:
        """Yield one prediction for each input, in order.

        `inputs` is one input or an iterable of inputs. For a model of images, an input is a path (a file, a table, a folder, an archive, an
        `.npy` file), a PIL image, or an array uint8 (height, width, channels). An array that is passed as `inputs` is an iterable of images, so
        pass a single image as `[array]`. For a model of texts, a `str` is a text, and a `pathlib.Path` is a file of which each line is a
        text, a table, or a folder or archive of such files. For a model of tables, an input is the path of a table, or a row as a dict from the names of
        columns to values; `inputs` may be a DataFrame of pandas. `batch_size` is the number of inputs in a forward pass, by default 64, and 1024 for rows of tables. `top_k` is the number of classes in a prediction, most likely first, and `beam` the
        width of the beam search of a model that writes texts. Raises Refusal for the first input that cannot be read. Warns of cells with a category
        that train does not have, after the last prediction.
        """
        for name, number in {"batch_size": 1 if batch_size is None else batch_size, "top_k": top_k}.items():
            if number < 1:
                raise Refusal(f"{name}: is {number}: write 1 or more")
        self.use_beam(beam)
        before = self.reader.note()
        if hasattr(inputs, "columns") and hasattr(inputs, "to_dict"):
            inputs = self.records(inputs)
        elif isinstance(self.reader, RowReader) and hasattr(inputs, "to_dict"):
            inputs = inputs.to_dict()  # a Series of pandas is one row
        is_single = isinstance(inputs, str | Path | Mapping) or not hasattr(inputs, "__iter__")
        readings = self.readings([inputs] if is_single else inputs)
        yield from self.predictions(readings, self.predictor(top_k), batch_size=batch_size, on_problem=refuse)
        if isinstance(self.reader, RowReader) and (note := self.reader.note()) != before:
            warnings.warn(note, stacklevel=2)

    def records(self, frame: Any) -> list[dict[Any, Any]]:
        """Return the rows of a DataFrame of pandas. Raises Refusal if the model reads no rows, or if one of its columns occurs twice."""
        if not isinstance(self.reader, RowReader):  # iterating over a frame yields the names of its columns
            raise Refusal("inputs: is a DataFrame, but this model does not read rows: give one of its columns, as by `frame[NAME]`")
        if twice := [column for column in self.reader.columns if list(frame.columns).count(column) > 1]:
            raise Refusal(f"inputs: has several columns called {shown(twice[0], 60)}: remove or rename all but one")
        return frame.to_dict("records")  # type: ignore[no-any-return]

    def use_encoding(self, encoding: str) -> None:
        """Read tables and files of text in `encoding`, the name of one for Python, unless a byte order mark names another."""
        self.column = self.column._replace(encoding=encoding)
        if hasattr(self.reader, "encoding"):
            self.reader.encoding = encoding

    def use_beam(self, beam: int) -> None:
        """Write texts by a beam search of this width. Raises Refusal if the model writes none, or if the width is out of range."""
        if not 1 <= beam <= WIDEST or (beam > 1 and self.write is None):
            raise Refusal(f"beam: is {beam}: write a number from 1 to {WIDEST}, and 1 for a model that writes no texts")
        self.beam = beam

    def predictor(self, top_k: int) -> Predictor:
        """Return the object that turns the model's outputs into predictions. `top_k` is the number of classes in a prediction."""
        return cast("Predictor", PREDICTORS.module(self.spec.targets.kind).Predictor(self.spec, top_k=top_k))

    def readings(self, inputs: Iterable[Any]) -> Iterator[Reading | Chunk]:
        """Yield the name of each input, in order, and the input as a stored sample, or a Refusal if it cannot be read.

        The name of an input from a path begins with this path. The name of any other input, such as an array, is its position, such as
        `[3]`.
        """
        for position, value in enumerate(inputs):
            if isinstance(value, Path) or (isinstance(value, str) and self.reader.strings_are_paths):
                with raw_inputs.opened([value], self.reader, self.column, workers=self.workers) as given:
                    yield from given.read()
                continue
            try:
                yield f"[{position}]", self.reader.row(value)
            except Refusal as refusal:
                yield f"[{position}]", refusal

    def predictions(
        self, readings: Iterable[Reading | Chunk], predictor: Predictor, *, batch_size: int | None, on_problem: Callable[[str], None]
    ) -> Iterator[Prediction]:
        """Yield a prediction for each input that can be read. `predictor` is the result of `self.predictor`; the others are those of `scored`."""
        for chunk, outputs in self.scored(readings, batch_size=batch_size, on_problem=on_problem):
            yield from predictor.predictions(chunk.names, outputs)

    def scored(
        self, readings: Iterable[Reading | Chunk], *, batch_size: int | None, on_problem: Callable[[str], None]
    ) -> Iterator[tuple[Chunk, NDArray[Any]]]:
        """Yield the inputs that can be read, in batches, and the outputs for them. Call `on_problem` with a message for each other input.

        `readings` are the inputs, as `self.readings` yields them. Raises Refusal if an output is not finite.
        """
        batch_size = batch_size or (ROWS_BATCH_SIZE if isinstance(self.reader, RowReader) else BATCH_SIZE)
        for batch in batches(readings, batch_size, on_problem):
            outputs = self.outputs(batch.samples)
            if not (finite := np.isfinite(outputs).reshape(len(outputs), -1).all(axis=1)).all():
                name = batch.names[int(np.argmin(finite))]
                remedy = "its training diverged; lower optimizer.learning_rate, or set a lower train.clip_norm, and train again"
                raise Refusal(f"{shown(name)}: the model's outputs are not finite: {remedy}")
            yield batch, outputs

    def outputs(self, rows: Sequence[Any]) -> NDArray[Any]:
        """Return the model's outputs for one batch, a float32 array, or float64 for numbers; of a model that writes texts, their tokens (n, length).

        `rows` are stored samples, the form in which `prepare` stores inputs.

        Raises Refusal if the batch does not fit in memory.
        """
        batch = self.reader.batch(rows)
        on_device = Batch(batch.inputs.to(self.device))
        with torch_errors.with_remedies(size="batch size"), tf32_allowed():
            if self.write is not None:
                return cast("NDArray[Any]", self.write(self.network, on_device.inputs, self.spec.inputs, beam=self.beam))
            ((outputs, _),) = networks.predict(self.network, [(on_device, len(rows))], precision=self.precision, device=self.device)
        return outputs.cpu().numpy()


def batches(readings: Iterable[Reading | Chunk], size: int, on_problem: Callable[[str], None]) -> Iterator[Chunk]:
    """Yield the inputs that can be read, at most `size` at a time; rows of a table are not mixed with others."""
    names, samples = list[str](), list[Any]()
    for reading in chain(readings, [Chunk([], [], {})]):
        if isinstance(reading, Chunk):
            yield from (*Chunk(names, samples, {}).parts(size), *reading.parts(size))
            names, samples = [], []
        elif isinstance(reading[1], Refusal):
            on_problem(reading[1].named(shown(reading[0])))
        else:
            names.append(reading[0])
            samples.append(reading[1])
            if len(names) == size:
                yield Chunk(names, samples, {})
                names, samples = [], []


def refuse(message: str) -> None:
    raise Refusal(message)


def refuse_missing(registry: Registry, kind: str, reason: str) -> None:
    """Raise Refusal if `registry`, READERS or PREDICTORS, has no module for the kind of inputs or the task called `kind`.

    `reason` is the end of the message: it says what is impossible because the module is missing.
    """
    if kind not in registry.names:
        raise Refusal(f"`predict` does not support the {registry.noun} `{kind}` of this model: {reason}")


def precision_on(device: torch.device, trained: ChosenPrecision) -> ChosenPrecision:
    """Return the precision in which to predict on `device`. `trained` is the precision of the training.

    - A GPU that supports `trained` predicts in `trained`.
    - Otherwise, a model that was trained with autocast is predicted in float32, the precision of its weights. This includes every CPU,
      because autocast on a CPU would take ten times as long.
    - A model trained in `bf16-true` has bf16 weights. A CPU predicts in `bf16-true`, too. Raises Refusal if a GPU does not support
      `bf16-true`.
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
    """Within this context, allow TF32 on GPUs, as training and evaluation do. Afterwards, restore the settings for the caller's own code."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    try:
        matmul.allow_tf32 = cudnn.allow_tf32 = True
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
