"""Gathers what is known about one model: its file, its scores, the data it was trained on, its history and its run."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.core import files
from pipeline.core.environment import Environment, Paths
from pipeline.core.params import adding_lines, load
from pipeline.core.prepared import Prepared, PreparedRecord, read_record
from pipeline.core.raw_dataset import TEST
from pipeline.core.refusal import Refusal
from pipeline.core.section import Scalar, flatten
from pipeline.core.yaml_document import Document
from pipeline.evaluate import stage
from pipeline.evaluate.params import EvaluateParams
from pipeline.evaluate.reports import predictions, recorded
from pipeline.inference import model_file
from pipeline.inference.machine import Machine
from pipeline.inference.model_file import Manifest
from pipeline.inference.networks import Model
from pipeline.runs.record import TRAIN, Record, runs_of
from pipeline.tools.compare.models import Facts, located_data, read


@dataclass(frozen=True)
class Evaluation:
    """The scores of a model on the test split. `tables` is the folder of the CSV files of the evaluation.

    `origin` is the file that has the scores; "" if they were computed for the report. `predictions` has the actual and the predicted class
    of each sample, and its confidence; it is empty if the task has no classes.
    """

    scores: Mapping[str, Any]
    tables: Path
    origin: str
    predictions: Sequence[Mapping[str, Any]]

    def table(self, name: str) -> list[dict[str, str]] | None:
        """Return the rows of the CSV file `name`; None if the task writes no such file. Raises Refusal if it cannot be parsed."""
        path = self.tables / name
        return recorded.read_table(path, "evaluate") if path.is_file() else None


@dataclass(frozen=True)
class Evidence:
    """All that a report of one model is made of.

    `trained` is the content of `metrics/train.json`, `history` the rows of `history.csv` or of the journal, `prepared` the data that the
    model was trained on, and `run` the record in the journal. Each is None if this checkout does not have it for this model.
    """

    digest: str
    model: Model
    manifest: Manifest
    facts: Facts
    """These are the facts that its run or its git revision recorded, as for `compare`."""
    evaluation: Evaluation
    trained: Mapping[str, Any] | None
    history: Sequence[recorded.Row] | None
    prepared: Prepared | None
    data: Path
    """The folder of `prepared`: `data/prepared/`, or links into DVC's cache."""
    run: Record | None
    before: Record | None
    """The newest finished training before `run` of the same architecture on the same data."""
    params: Mapping[str, Scalar]
    """The parameters of the training by dotted key; also those of the source, if they are known."""
    paths: Paths


@contextmanager
def collect(name: str, paths: Paths, environment: Environment) -> Iterator[Evidence]:
    """Yield the evidence for the model that `name` denotes: a model file, a run or a model in MLflow.

    If `metrics/evaluate.json` has the scores of this model file, they and the tables of that evaluation are used. Otherwise the model is
    evaluated, and the tables are in a temporary folder until the end of the `with` block. Raises Refusal if the model cannot be found, or if
    it must be evaluated but `data/prepared/` is not the data that it was trained on.
    """
    with ExitStack() as stack:
        of = read(name, paths, environment)
        manifest, run = of.manifest, of.run
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="report-")))
        model = model_file.rebuild(of.weights, manifest, Path(name))
        of_checkout = paths.model.is_file() and files.digest(paths.model) == of.digest
        data = stack.enter_context(located_data(paths.prepared, paths.top, partial(is_data_of, manifest)))
        prepared = data_of(manifest, data)
        evaluation = recorded_evaluation(of.digest, paths) or evaluate_anew(model, manifest, prepared, environment, name, paths, folder)
        trained = recorded.trained(paths.metrics / "train.json", manifest.step) if of_checkout else None
        trained_with = [fields["params"] for fields in run.begun if fields["stage"] == TRAIN] if run else []
        of_data = flatten({"source": read_record(data).source or {}}) if prepared else {}
        known = trained_with[-1] if trained_with else of_data  # a journal of an evaluation alone may have those of other data
        source = {name: value for name, value in known.items() if name.startswith("source.")}
        yield Evidence(
            digest=of.digest,
            model=model,
            manifest=manifest,
            facts=of.facts,
            evaluation=evaluation,
            trained=trained,
            history=recorded.read_table(paths.history, "train") if trained is not None else run.history if run else None,
            prepared=prepared,
            data=data,
            run=run,
            before=previous(run, environment.root) if run else None,
            params=source | flatten(manifest.params),
            paths=paths,
        )


def previous(run: Record, root: Path) -> Record | None:
    """Return the newest finished training before `run` of the same architecture and data in this checkout; None if there is none."""
    earlier = (each for each in reversed(runs_of(root)) if each.name < run.name and each.digest)
    return next((each for each in earlier if each.first.get("subject") == run.last.get("subject")), None)


def is_data_of(manifest: Manifest, record: PreparedRecord) -> bool:
    return record.digest == manifest.inputs.get("data")


def data_of(manifest: Manifest, folder: Path) -> Prepared | None:
    """Return the prepared data in `folder` if the model was trained on it, else None. Raises Refusal if its files are damaged."""
    if not (folder / "spec.json").is_file() or not is_data_of(manifest, read_record(folder)):
        return None
    return Prepared.open(folder)


def recorded_evaluation(digest: str, paths: Paths) -> Evaluation | None:
    """Return the evaluation in `metrics/` and `plots/evaluate/` if it is of the model file with this digest, else None.

    Raises Refusal if the predictions of a classification are missing or do not match the scores, as after an evaluation that was killed.
    """
    path = paths.metrics / "evaluate.json"
    if not path.is_file():
        return None
    scores, label = recorded.read(path)
    if label != digest[: recorded.DIGITS]:
        return None
    if "per_class" not in scores:
        return Evaluation(scores, paths.evaluation_plots, str(path), [])
    table = predictions.read(paths.predictions)
    if table is None:
        raise Refusal(
            f"{paths.predictions}: is missing, and belongs to {path}: run `dvc pull {paths.predictions}` or `dvc repro -f evaluate`"
        )
    rows = table.to_pylist()
    if (len(rows), sum(row["correct"] for row in rows) / max(1, len(rows))) != (scores["samples"], scores.get("accuracy")):
        raise Refusal(f"{paths.predictions}: has the predictions of another evaluation than {path}: run `dvc repro -f evaluate`")
    return Evaluation(scores, paths.evaluation_plots, str(path), rows)


def evaluate_anew(
    model: Model, manifest: Manifest, prepared: Prepared | None, environment: Environment, name: str, paths: Paths, folder: Path
) -> Evaluation:
    """Evaluate the model with the section `evaluate` of `params.yaml`, and write the tables to `folder`. `name` is the user's name for it.

    Raises Refusal if `prepared` is None, that is, if the data of the model is not in this checkout.
    """
    if prepared is None:
        raise Refusal(
            f"{name}: {paths.metrics / 'evaluate.json'} has no scores of this model, and neither {paths.prepared} nor DVC's cache has the data "
            "that it was trained on: run `dvc repro prepare` with its parameters, when no other `dvc repro` runs"
        )
    document = Document.read(paths.params)
    with adding_lines(document):
        params = load(document, EvaluateParams).for_task(manifest.spec.targets.kind)
        evaluator, scores = stage.judge(model, manifest, prepared, Machine.set_up(environment), params)
    evaluator.write(folder, inputs=prepared.split(TEST).inputs, history=[], model=model)
    model.cpu()
    rows = predictions.table(evaluator.sample_scores(), None).to_pylist() if "per_class" in scores else []
    return Evaluation(scores, folder, "", rows)
