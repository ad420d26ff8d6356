"""The stage evaluate: scores the saved model file on the test split, and writes metrics, tables and figures."""

import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.core import files, untrusted
from pipeline.core.environment import Environment, Paths
from pipeline.core.identity import RefuseChanges
from pipeline.core.observer import Observer
from pipeline.core.prepared import Prepared, Split, sample_keys
from pipeline.core.raw_dataset import TEST
from pipeline.core.refusal import Refusal
from pipeline.core.spec import Spec
from pipeline.evaluate import columns, intervals, tta
from pipeline.evaluate.params import EVALUATIONS, EvaluateParams
from pipeline.evaluate.reports import recorded
from pipeline.evaluate.reports.metrics import SampleScores
from pipeline.inference import model_file, networks, precision, torch_errors
from pipeline.inference.batches import loader
from pipeline.inference.cuda_graphs import Graphs
from pipeline.inference.machine import Machine, set_determinism
from pipeline.inference.measuring import refuse_unfit
from pipeline.inference.model_file import Manifest
from pipeline.inference.networks import Model

MAX_NAMES = 100
"""Largest number of characters of class names in a message."""


class Receiver(Protocol):
    """Collects the outputs of a model batch by batch."""

    def add(self, outputs: Tensor, targets: Tensor, /) -> None:
        """Add the next n samples: the model's outputs and the targets. Both have the shape (n, ...) and are on the model's device."""
        ...


class Evaluator(Receiver, Protocol):
    """Computes scores, tables and figures from the outputs that it has collected.

    If the model writes texts, which are more than outputs for the true targets, there is another method, which is called after all outputs were
    added: `write_texts(model, rows, batch_size, device)` writes a text for each of `rows`, stored samples of the test split, in batches.
    """

    def scores(self) -> dict[str, Any]:
        """Return the scores for `metrics/evaluate.json`. A score is a number, or a mapping whose values are scores.

        The scores must include `loss` and `samples`.
        """
        ...

    def sample_scores(self) -> SampleScores:
        """Return the scores of each sample, in the order of the test split. Raises Refusal for the same reasons as `scores`."""
        ...

    def write(self, folder: Path, *, inputs: NDArray[Any], history: Sequence[Mapping[str, object]], model: nn.Module) -> None:
        """Write tables and figures into `folder`.

        `inputs` are the inputs of the test split. `history` contains the rows of `plots/train/history.csv`. `model` is the model whose
        outputs were added.
        """
        ...


def evaluate(params: EvaluateParams, paths: Paths, environment: Environment, *, observer: Observer, refuse_changes: RefuseChanges) -> None:
    """Score the model file on the test split, write metrics, tables, figures and predictions, and tell the observer.

    `refuse_changes` is called before the results are written, and again at the end. Raises Refusal if the model file, the prepared data or
    the training history is missing or damaged, if the model does not fit the prepared data (see `refuse_other_data`), and for the reasons
    that `judge` lists.
    """
    machine = Machine.set_up(environment)
    model, manifest = model_file.load(paths.model)
    prepared = Prepared.open(paths.prepared)
    refuse_other_data(manifest.spec, prepared.spec, model=paths.model, data=paths.prepared)
    history = recorded.read_table(paths.history, "train")

    def reads_the_same() -> bool:
        found, described = model_file.load(paths.model)
        weights = found.network.state_dict()
        return (
            described == manifest
            and all(torch.equal(value.cpu(), weights[name]) for name, value in model.network.state_dict().items())
            and Prepared.open(paths.prepared).digest == prepared.digest
            and recorded.read_table(paths.history, "train") == history
        )

    split = prepared.split(TEST)
    keys = sample_keys(paths.prepared, TEST, len(split))
    evaluator, scores = judge(model, manifest, prepared, machine, params)
    refuse_changes(reads_the_same)
    paths.predictions.unlink(missing_ok=True)
    shutil.rmtree(paths.evaluation_plots, ignore_errors=True)  # which may be of another task
    files.write_json(paths.metrics / "evaluate.json", {TEST: scores, recorded.MODEL: recorded.label(paths.model)})
    evaluator.write(paths.evaluation_plots, inputs=split.inputs, history=history, model=model)
    if prepared.spec.inputs.columns_read:
        found = columns.importances(prepared.spec.inputs, split, partial(mean_loss, model, manifest, prepared.spec, machine, params))
        recorded.write(paths.evaluation_plots / columns.FILE, columns.HEADER, found)
    # Last: without this table, `report` refuses the others, because the evaluation was killed.
    recorded.write_predictions(paths.predictions, recorded.predictions_table(evaluator.sample_scores(), keys))
    observer.evaluation_ends(manifest, scores)
    refuse_changes(reads_the_same)  # again: the end of the run may have waited minutes for MLflow
    if not environment.summary_follows:
        print(recorded.result_line(scores), flush=True)


def judge(
    model: Model, manifest: Manifest, prepared: Prepared, machine: Machine, params: EvaluateParams
) -> tuple[Evaluator, dict[str, Any]]:
    """Score the model on the whole test split. Return the task's evaluator and the scores for `metrics/evaluate.json`. Write no files.

    `machine` is this machine and the device on which the model is scored. With `evaluate.test_time_augmentation`, the logits of several
    views of each image are averaged, and their accuracy is added to the scores. The scores of guessing without looking at the inputs are added,
    too. The evaluator does not have these averages, but the outputs for the unmodified inputs. Raises Refusal if there is no test split, if
    the settings do not fit the data or the machine, or if a logit or a loss is not finite.
    """
    spec = prepared.spec.model_copy(update={"targets": manifest.spec.targets})  # a model has its own thresholds of labels
    params.evaluate.refuse_other_task(spec.targets.kind)
    params.evaluate.refuse_impossible_views(spec.inputs, spec.targets.metrics)
    split, device = prepared.split(TEST), machine.device
    batch_size = min(params.evaluate.batch_size, len(split))
    set_determinism(manifest.inference.train.deterministic)
    requested, task = params.evaluate.test_time_augmentation, EVALUATIONS.module(spec.targets.kind)
    evaluator: Evaluator = task.Evaluator(spec, params.evaluate)
    measured = intervals.MeasuredWithIntervals(params.evaluate, spec, num_samples=len(split), batch_size=batch_size)
    refuse_unfit(measured.metrics, spec.targets, "evaluate.metrics", device)
    model.to(device)
    with torch_errors.with_remedies(size="evaluate.batch_size"):
        feed([evaluator, measured], model, split, manifest, machine, batch_size=batch_size)
        if hasattr(evaluator, "write_texts"):
            evaluator.write_texts(model.eval(), split.inputs, batch_size, device)
        scores = evaluator.scores() | measured.scores() | spec.targets.baseline_scores(prepared.train.targets, split.targets)
        if spec.inputs.columns_read:
            scores |= columns.linear_scores(prepared, split, networks.preprocessing(spec.inputs, channels_last=False))
        if requested != "none":
            augmented = task.Evaluator(spec, params.evaluate)
            feed([augmented], tta.Averaged(model, requested), split, manifest, machine, batch_size=batch_size)
            scores[f"accuracy_{requested}"] = augmented.scores()["accuracy"]
    return evaluator, scores


def mean_loss(model: Model, manifest: Manifest, spec: Spec, machine: Machine, params: EvaluateParams, split: Split) -> float:
    """Return the mean loss of the model on a split, in the unit of the loss in `metrics/evaluate.json`."""
    evaluator: Evaluator = EVALUATIONS.module(spec.targets.kind).Evaluator(spec, params.evaluate)
    batch_size = min(params.evaluate.batch_size, len(split))
    feed([evaluator], model, split, manifest, machine, batch_size=batch_size, captures=False)
    if hasattr(evaluator, "mean_loss"):  # of numbers: the losses of samples are in the squared unit of the targets
        return float(evaluator.mean_loss())
    found = evaluator.sample_scores()
    return float(found.loss.sum() / found.num_targets.sum())


def feed(
    receivers: Sequence[Receiver],
    model: nn.Module,
    split: Split,
    manifest: Manifest,
    machine: Machine,
    *,
    batch_size: int,
    captures: bool = True,
) -> None:
    """Add the model's outputs for a split to each of `receivers`, batch by batch, in the order of the split.

    If `captures` is True, the forward pass is captured as a CUDA graph where the machine has them, which changes no output.
    """
    device, chosen = machine.device, precision.choose(manifest.precision, machine.device)
    graphs = Graphs(device, "evaluate") if captures and device.type == "cuda" and machine.graphs == "on" else None
    batches = loader.scoring(loader.SplitTensors(split, device), batch_size=batch_size)
    for outputs, targets in networks.predict(model, batches, precision=chosen, device=device, graphs=graphs):
        assert targets is not None
        for receiver in receivers:
            receiver.add(outputs, targets)


def refuse_other_data(expected: Spec, found: Spec, *, model: Path, data: Path) -> None:
    """Raise Refusal unless the model can read the inputs of the prepared data, and has the same targets.

    `expected` describes the data that the model was trained on, and `found` describes the prepared data. Mean and standard deviation of
    images may differ; the tokenizers of texts and the white of images must be equal. `model` and `data` are paths for the message.
    """
    if not expected.inputs.reads_samples_of(found.inputs) or not expected.targets.has_targets_of(found.targets):
        more = "" if shown(expected) != shown(found) else ", in another form, such as that of another tokenizer or another source.white"
        raise Refusal(f"{model}: was trained on {shown(expected)}, but {data} has {shown(found)}{more}: run `dvc repro`")


def shown(spec: Spec) -> str:
    """Return a text for a message about inputs and outputs, such as `image inputs (8, 8, 1) and 2 outputs (cat, dog)`."""
    names = untrusted.shown(", ".join(spec.targets.output_names), MAX_NAMES)
    return f"{spec.inputs.kind} inputs {spec.inputs.row_shape} and {spec.num_outputs} outputs" + (f" ({names})" if names else "")
