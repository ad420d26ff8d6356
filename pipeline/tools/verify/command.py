"""`verify`: compute the metadata and metrics of a model again, and print the first difference from what is recorded."""

import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.core import files, identity, untrusted
from pipeline.core.environment import Environment, Paths
from pipeline.core.params import adding_lines, from_data, load, shown, upgraded
from pipeline.core.prepared import Prepared, read_record
from pipeline.core.refusal import counted
from pipeline.core.section import leaves
from pipeline.core.yaml_document import Document
from pipeline.evaluate import stage
from pipeline.evaluate.params import EvaluateParams
from pipeline.evaluate.reports import recorded
from pipeline.inference import model_file, tensor_file, torch_errors
from pipeline.inference.machine import Machine, is_known, set_determinism
from pipeline.inference.model_file import Manifest
from pipeline.inference.tensor_file import Tensors
from pipeline.prepare.params import PrepareParams
from pipeline.prepare.progress import progress
from pipeline.runs import find, run_description
from pipeline.runs.find import Found
from pipeline.train import beginning
from pipeline.train.engine.checkpoint import Checkpoints
from pipeline.train.params import TrainParams
from pipeline.train.training import Training

HEXADECIMAL = re.compile(r"[0-9a-f]{40,64}")
NOTHING, LONGEST = "nothing", 200


@dataclass(frozen=True)
class ComparedPart:
    name: str
    description: str
    """Text about what was compared, printed with the result."""
    difference: str | None
    """The first difference with both values; None if the values are equal."""


Places = tuple[str, str]
"""The places of two compared values, such as "the file" and "this machine". The second ends a message, so it may contain a remedy."""


def compare_values(name: str, description: str, places: Places, expected: Mapping[str, Any], found: Mapping[str, Any]) -> ComparedPart:
    """Compare nested mappings. The difference names the first differing key, such as `train.steps`, and both values."""
    different = identity.differences(dict(leaves(expected)), dict(leaves(found)), missing=NOTHING)
    texts = (f"{untrusted.shown(key, LONGEST)}: {described(places, *values)}" for key, values in different)
    return ComparedPart(name, description, next(texts, None))


def compare_texts(name: str, description: str, places: Places, expected: str, found: str) -> ComparedPart:
    """Compare two digests."""
    return ComparedPart(name, f"{description} ({short(found)})", None if expected == found else described(places, expected, found))


def described(places: Places, expected: object, found: object) -> str:
    return f"{short(expected)} in {places[0]}, but {short(found)} in {places[1]}"


def difference(name: str, expected: Tensor | None, found: Tensor | None) -> str | None:
    """Describe how two tensors called `name` differ; return None if their dtype, shape and bits are equal. None stands for a missing
    tensor.

    If only bits differ, the text has the number of elements that differ and the largest absolute difference.
    """
    if expected is None or found is None or form(expected) != form(found):
        return f"{name}: {form(expected)} in the file, {form(found)} in the new training"
    # Compare bytes, not values: NaN equals NaN, and 0.0 differs from -0.0.
    bits, others = (tensor.contiguous().flatten().view(torch.uint8).view(*tensor.shape, -1) for tensor in (expected, found.cpu()))
    different = (bits != others).any(dim=-1)
    if not different.any():
        return None
    largest = (expected.double() - found.cpu().double())[different].abs().max()
    return f"{name}: {int(different.sum())} of {expected.numel()} elements differ, by {float(largest):.3g} at most"


def form(tensor: Tensor | None) -> str:
    """Return the dtype and shape of a tensor as text, or `NOTHING` for None."""
    return NOTHING if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def short(value: object) -> str:
    """Shorten a value for a message: a digest or commit to 12 digits, other text to its first line. Other values become JSON."""
    if not isinstance(value, str):
        return shown(value)
    line = (value.splitlines() or [""])[0]
    return line[:12] if HEXADECIMAL.fullmatch(line) else untrusted.shown(line, LONGEST)


def run(subject: str, retrain: bool) -> int:
    """Compare what a model file or a run records with this checkout, and print each comparison. `subject` names the model file or the run.

    The comparisons are of the data, the code, the lock file, the parameters, the machine and the scores.
    With `retrain`, also train again in a temporary folder and compare the new model file. Return 1 at the first difference, or 0 if there
    is none. If other code trained the model, `retrain` continues after each difference, because the weights may be equal nevertheless.
    Nothing in the checkout is written. The last line says `identical` only if the training was repeated, and otherwise what was compared.
    Raises Refusal if the model file of the run is neither on this machine nor in MLflow.
    """
    paths, environment = Paths(), Environment.read()
    equal, different = list[str](), list[str]()
    with find.located(subject, paths, environment) as found:
        for comparison in comparisons(found, paths, environment, retrain=retrain):
            print(f"verify: {comparison.name:8} {'differs' if comparison.difference else 'equal':7}  {comparison.description}", flush=True)
            (different if comparison.difference else equal).append(comparison.name)
            if comparison.difference:
                print(f"differs: {comparison.name}: {comparison.difference}")
                if not (retrain and "code" in different):
                    return 1
    if different:
        print(f"differs: {', '.join(different)}; all else is equal")
        return 1
    untrained = f"equal: {', '.join(equal)}; nothing was trained: `--retrain` trains again and compares the weights"
    print("identical" if retrain else untrained)
    return 0


def comparisons(found: Found, paths: Paths, environment: Environment, *, retrain: bool) -> Iterator[ComparedPart]:
    """Yield one comparison after another, from the causes to the result: the model file, the data, the code, the parameters, the machine,
    and then the scores.

    With `retrain`, finally train again and compare the new model file. The caller should stop at the first difference, because each
    comparison assumes that there was none before. Raises Refusal if a file that is needed is missing or invalid.
    """
    model, record = found.path, found.run
    if record:
        places = ("the journal", f"{model}, the model of a later training that was sent to the same run of MLflow")
        yield compare_texts("run", record.name, places, record.model_digest, files.digest(model))
    weights, metadata = tensor_file.load(model, header_bytes=model_file.HEADER_BYTES)
    digest = tensor_file.digest(weights, metadata)  # that in the file: `load` refuses a damaged one
    yield ComparedPart("file", f"{model} ({short(digest)})", None)
    manifest = model_file.describe(metadata, model)
    upgraded_params, _ = upgraded(manifest.params, TrainParams)
    params, machine = from_data(upgraded_params, TrainParams, f"{model}: the model file"), Machine.set_up(environment)
    yield from compare_inputs(manifest, upgraded_params, paths, machine, weights=params.model.weights_file)
    prepared = Prepared.open(paths.prepared)
    yield compare_scores(found, weights, manifest, prepared, paths, machine)
    if retrain:
        yield from compare_retraining(model, weights, manifest, params, prepared, machine)


def compare_inputs(
    manifest: Manifest, params: Mapping[str, Any], paths: Paths, machine: Machine, *, weights: Path | None
) -> Iterator[ComparedPart]:
    """Compare data, code, lock file, parameters and machine with those in `manifest`, the metadata of the model file.

    `params` are the parameters of the file, with the keys that were added since it was written. `weights` is the file from which the
    training started, if any; its digest is compared too. Raises Refusal if the prepared data is missing or damaged, or if `params.yaml` is
    invalid.
    """
    places = ("the file", "this checkout (`dvc status train` names what changed)")
    code = identity.dependencies("train", {**params, "evaluate": {"name": manifest.spec.targets.kind}}, paths.top)
    recorded_source = read_record(paths.prepared).source  # raises Refusal if no data was prepared
    digests = {
        "code": ("the dependencies of train in dvc.yaml", identity.code_digest(code, paths.top)),
        "lock": (str(paths.lock), files.digest(paths.lock)),
        "data": (str(paths.prepared), Prepared.open(paths.prepared).digest),
    }
    if weights is not None:
        digests["weights"] = (str(weights), str(beginning.weights_digest(weights)))
    for name, (description, digest) in digests.items():
        yield compare_texts(name, description, places, manifest.inputs.get(name, NOTHING), digest)
    found_params = load(Document.read(paths.params), TrainParams).model_dump(mode="json")
    yield compare_values("params", str(paths.params), ("the file", str(paths.params)), params, found_params)
    if recorded_source:
        source = load(Document.read(paths.params), PrepareParams).source.model_dump(mode="json")
        places = (str(paths.prepared), f"{paths.params}: run `dvc repro -f prepare`")
        yield compare_values("source", str(paths.prepared), places, {"source": recorded_source}, {"source": source})
    expected, here = manifest.fingerprint, machine.fingerprint()
    description = f"{here['name']}, {here['cpu']}, {counted(here['threads'], 'thread')}, torch {here['libraries']['torch']}"
    compared = compare_values("machine", description, ("the file", "this machine"), expected, here)
    if not compared.difference and not is_known(expected):
        compared = replace(compared, difference="the CPU is unknown, so the two may differ")
    yield compared


def compare_scores(
    subject: Found, weights: Tensors, manifest: Manifest, prepared: Prepared, paths: Paths, machine: Machine
) -> ComparedPart:
    """Evaluate the model again. Compare the scores with those in the journal of a run that was evaluated, else with `metrics/evaluate.json`.

    Raises Refusal if `metrics/evaluate.json` or `params.yaml` is missing or invalid, if the settings in `params.yaml` do not fit the data
    or the machine, or if an output of the model is not finite.
    """
    document = Document.read(paths.params)
    model = model_file.rebuild(weights, manifest, subject.path)
    with adding_lines(document):
        _, found = stage.judge(model, manifest, prepared, machine, load(document, EvaluateParams))
    line = recorded.result_line(found)
    if subject.run and (scores := subject.run.metrics("test/")):
        metrics = run_description.test_metrics(found)
        expected = {name: value for name, value in scores.items() if name in metrics}  # an earlier evaluation may have measured more
        return compare_values("score", line, ("the journal", "this evaluation"), expected, metrics)
    path = paths.metrics / "evaluate.json"
    expected, label = recorded.read(path)
    place = str(path) if label == recorded.label(subject.path) else f"{path}, which is of another model"
    return compare_values("score", line, (place, "this evaluation"), expected, found)


def compare_retraining(
    model: Path, weights: Tensors, manifest: Manifest, params: TrainParams, prepared: Prepared, machine: Machine
) -> Iterator[ComparedPart]:
    """Train again, and compare the weights, the manifest (the metadata of the model file) and the bytes of the exported file.

    The micro-batch is halved at the same steps as in the recorded training (`manifest.switches`). The new training writes only to a
    temporary folder, which is deleted at the end.
    """
    set_determinism(params.train.deterministic, training=True)
    with tempfile.TemporaryDirectory(prefix="verify-") as folder:
        training = Training.begin(params, prepared, machine, Checkpoints(Path(folder), kept=1), micro_batch_changes=manifest.switches)
        with progress("verify", training.plan.num_steps, "steps") as advance, torch_errors.with_remedies(size="train.micro_batch_size"):
            for _ in training.reports():
                advance()
        new_weights, step = training.exported()
        differences = (difference(key, weights.get(key), new_weights.get(key)) for key in sorted({*weights, *new_weights}))
        yield ComparedPart("weights", f"{counted(len(weights), 'tensor')}, trained again", next(filter(None, differences), None))
        places, copy = ("the file", "the new training"), Path(folder) / model.name
        state, switches = training.state, training.progress.micro_batch_changes
        formats = {"precision": state.precision, "channels_last": state.model.channels_last, "ended_at": training.progress.ended_at}
        new_manifest = manifest.model_copy(update={**formats, "step": step, "spec": prepared.spec, "switches": switches})
        before, after = manifest.model_dump(mode="json"), new_manifest.model_dump(mode="json")
        yield compare_values("training", f"exported at step {step}", places, before, after)
        model_file.export(copy, new_weights, new_manifest)
        yield compare_texts("bytes", "the whole file", places, files.digest(model), files.digest(copy))
