"""`verify`: compute the metadata and metrics of a model again, and print the first difference from what is recorded."""

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.core import files, identity, untrusted
from pipeline.core.environment import Environment, Paths
from pipeline.core.params import adding_lines, from_data, load, shown, upgraded
from pipeline.core.prepared import Prepared, read_record
from pipeline.core.refusal import Refusal, counted
from pipeline.core.section import leaves
from pipeline.core.yaml_document import Document
from pipeline.evaluate import stage
from pipeline.evaluate.params import EvaluateParams
from pipeline.evaluate.reports import recorded
from pipeline.inference import model_file, tensor_file, torch_errors
from pipeline.inference.machine import Machine, is_known, set_determinism
from pipeline.inference.model_file import Manifest
from pipeline.inference.tensor_file import Damaged, Tensors
from pipeline.prepare.params import PrepareParams
from pipeline.prepare.progress import progress
from pipeline.runs import find, provenance, run_description
from pipeline.runs.find import Found
from pipeline.runs.record import Record
from pipeline.train import beginning
from pipeline.train.engine.checkpoint import Checkpoints
from pipeline.train.params import TrainParams
from pipeline.train.training import Training

HEXADECIMAL = re.compile(r"[0-9a-f]{40,64}")
NOTHING, UNKNOWN, LONGEST = "nothing", "unknown: ", 200


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
    """Compare two strings, such as digests or commits."""
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

    The comparisons are of the data, the code, the lock file, the parameters, the machine and the scores; for a run, also of the commit.
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


COMMIT = {"git.commit": "commit", "git.difference": "changes"}


def comparisons(found: Found, paths: Paths, environment: Environment, *, retrain: bool) -> Iterator[ComparedPart]:
    """Yield one comparison after another, from the causes to the result: the model file, the data, the code, the parameters, the machine,
    and then the scores. For a run, the commit and the scores are also compared with the journal.

    With `retrain`, finally train again and compare the new model file. The caller should stop at the first difference, because each
    comparison assumes that there was none before. Raises Refusal if a file that is needed is missing or invalid.
    """
    model, record = found.path, found.run
    if record:
        places = ("the journal", f"{model}, the model of a later training that was sent to the same run of MLflow")
        yield compare_texts("run", record.name, places, record.model_digest, files.digest(model))
    places = ("the file", "its contents: the file was damaged, or changed by hand")
    try:
        weights, metadata = tensor_file.load(model, header_bytes=model_file.HEADER_BYTES)
    except Damaged as damaged:
        yield compare_texts("file", str(model), places, damaged.claimed, damaged.found)
        return
    digest = tensor_file.digest(weights, metadata)
    yield compare_texts("file", str(model), places, digest, digest)
    manifest = model_file.describe(metadata, model)
    upgraded_params, _ = upgraded(manifest.params, TrainParams)
    params, machine = from_data(upgraded_params, TrainParams, f"{model}: the model file"), Machine.set_up(environment)
    yield from compare_inputs(manifest, upgraded_params, paths, machine, weights=params.model.weights_file)
    if record:
        yield from compare_commit(record, environment)
    prepared = Prepared.open(paths.prepared)
    yield from compare_scores(found, weights, manifest, prepared, paths, machine)
    if retrain:
        yield from compare_retraining(model, weights, manifest, params, prepared, machine)


def compare_inputs(
    manifest: Manifest, params: Mapping[str, Any], paths: Paths, machine: Machine, *, weights: Path | None
) -> Iterator[ComparedPart]:
    """Compare data, code, lock file, parameters and machine with those in `manifest`, the metadata of the model file.

    `params` are the parameters of the file, with the keys that were added since it was written. `weights` is the file from which the
    training started, if any; its digest is compared too. Raises Refusal if there is no prepared data, or if `params.yaml` is invalid.
    """
    places = ("the file", "this checkout (`dvc status train` names what changed)")
    code = identity.dependencies("train", {**params, "evaluate": {"name": manifest.spec.targets.kind}}, paths.top)
    recorded_source = read_record(paths.prepared).source  # raises Refusal if no data was prepared
    digests: dict[str, tuple[str, Callable[[], str]]] = {
        "code": ("the dependencies of train in dvc.yaml", lambda: identity.code_digest(code, paths.top)),
        "lock": (str(paths.lock), lambda: files.digest(paths.lock)),
        "data": (str(paths.prepared), lambda: Prepared.open(paths.prepared).digest),
    }
    if weights is not None:
        digests["weights"] = (str(weights), lambda: str(beginning.weights_digest(weights)))
    for name, (description, digest) in digests.items():
        try:
            found = digest()
        except Refusal as refusal:
            found = f"none that can be read ({refusal})"
        except FileNotFoundError as error:
            found = f"no {error.filename}"
        yield compare_texts(name, description, places, manifest.inputs.get(name, NOTHING), found)
    found_params = load(Document.read(paths.params), TrainParams).model_dump(mode="json")
    yield compare_values("params", str(paths.params), ("the file", str(paths.params)), params, found_params)
    if recorded_source:
        source = load(Document.read(paths.params), PrepareParams).source.model_dump(mode="json")
        places = (str(paths.prepared), f"{paths.params}: run `dvc repro -f prepare`")
        yield compare_values("source", str(paths.prepared), places, {"source": recorded_source}, {"source": source})
    yield compare_machine(manifest.fingerprint, machine.fingerprint())


def compare_machine(expected: Mapping[str, Any], found: Mapping[str, Any]) -> ComparedPart:
    """Compare the fingerprint in the model file, `expected`, with that of this machine. One that does not name its CPU differs from all."""
    cpu = f", {found['cpu']}" if "cpu" in found else ""
    description = f"{found['name']}{cpu}, {counted(found['threads'], 'thread')}, torch {found['libraries']['torch']}"
    places = ("the file", "this machine")
    compared = compare_values("machine", description, places, expected, found)
    if compared.difference or (is_known(expected) and is_known(found)):
        return compared
    return ComparedPart("machine", description, f"cpu: {described(places, expected.get('cpu'), found['cpu'])}: the two may differ")


def compare_commit(record: Record, environment: Environment) -> Iterator[ComparedPart]:
    """Compare the commit and the uncommitted changes that the journal recorded with those of the checkout.

    Changes of params.yaml and of the files of results do not count, neither between two commits nor uncommitted, because they are usually
    committed after the run: their values are compared, those of the section `source` by the digest of the data. A value that is unknown
    differs from every value. A value that the journal lacks differs, unless the checkout lacks it, too.
    """
    current, places = provenance.gather(environment), ("the journal", "this checkout")
    for key, name in COMMIT.items():
        expected, found = record.provenance.get(key, NOTHING), current.get(key, NOTHING)
        if expected.startswith(UNKNOWN) or found.startswith(UNKNOWN):
            yield ComparedPart(name, "git", described(places, expected, found))
        elif key == "git.difference":
            before, now = provenance.changed_code(expected), provenance.changed_code(found)
            yield compare_texts(name, "git", places, before, now)
        elif expected != found and provenance.code_between(expected, found) == []:
            yield ComparedPart(name, f"git ({short(found)}, which differs in parameters and results only)", None)
        else:
            yield compare_texts(name, "git", places, expected, found)


def compare_scores(
    subject: Found, weights: Tensors, manifest: Manifest, prepared: Prepared, paths: Paths, machine: Machine
) -> Iterator[ComparedPart]:
    """Evaluate the model again. Compare the scores with `metrics/evaluate.json` and, for a run, with its journal.

    Raises Refusal if `metrics/evaluate.json` or `params.yaml` is missing or invalid, if the settings in `params.yaml` do not fit the data
    or the machine, or if an output of the model is not finite.
    """
    path, document = paths.metrics / "evaluate.json", Document.read(paths.params)
    expected, label = recorded.read(path)
    model = model_file.rebuild(weights, manifest, subject.path)
    with adding_lines(document):
        _, found = stage.judge(model, manifest, prepared, machine, load(document, EvaluateParams))
    places = (str(path) if label == recorded.label(subject.path) else f"{path}, which is of another model", "this evaluation")
    yield compare_values("score", recorded.result_line(found), places, expected, found)
    if subject.run:
        scores = subject.run.metrics("test/")
        metrics = run_description.test_metrics(found) if scores else {}
        expected = {name: value for name, value in scores.items() if name in metrics}  # an earlier evaluation may have measured more
        description = f"{counted(len(metrics), 'value')} of the journal" if scores else "none in the journal: the run was not evaluated"
        yield compare_values("scores", description, ("the journal", "this evaluation"), expected, metrics)


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
