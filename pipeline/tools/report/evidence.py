"""Gathers what is known about one model: its file, its scores, the data it was trained on, its history and its run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
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
from pipeline.evaluate.reports import recorded
from pipeline.inference import model_file
from pipeline.inference.machine import Machine
from pipeline.inference.model_file import Manifest
from pipeline.inference.networks import Model
from pipeline.tools.compare import dvc_cache
from pipeline.tracking import events, journal, subject
from pipeline.tracking.events import Event

TRAIN = "train"
RATE, MEMORY = "train/samples_per_second", "memory/"
POWER = "_power_usage_watts"
LONGEST_GAP_S = 90.0
"""Power is sampled at least every 30 s. Over a longer gap, the machine was suspended, and the energy is unknown."""


@dataclass(frozen=True)
class Cost:
    """The measured cost of a training. The values differ when the same training is run again.

    `time_s` is the duration of the stage `train`, summed over its sessions if it was interrupted. `energy_wh` is the energy of all GPUs of
    the machine in that time; None if it is unknown. `memory_megabytes` has the largest value of each recorded kind of memory.
    """

    time_s: float
    num_sessions: int
    samples_per_second: float | None
    energy_wh: float | None
    memory_megabytes: Mapping[str, float]


@dataclass(frozen=True)
class RunRecord:
    """The record of a model's run in its journal. `history` has one row per report, as in `history.csv`."""

    name: str
    params: Mapping[str, Scalar]
    provenance: Mapping[str, Any]
    history: Sequence[Mapping[str, object]]
    cost: Cost | None


def read(folder: Path) -> RunRecord:
    """Return the record in the journal `folder`. The journal of an evaluation without a training has an empty history, and its cost is None."""
    recorded = list(events.read(folder / events.EVENTS))
    stages = stages_of(recorded)
    training = [event for event, stage in zip(recorded, stages, strict=True) if stage == TRAIN]
    begun = [event.fields for event in (training or recorded) if event.kind in ("start", "reopen")]
    last: Mapping[str, Any] = begun[-1] if begun else {}
    rows = [{"step": event.fields["step"], **event.fields["values"]} for event in training if event.kind == "metrics"]
    history = [{name: value for name, value in row.items() if name != RATE and not name.startswith(MEMORY)} for row in rows]
    return RunRecord(folder.name, last.get("params", {}), last.get("provenance", {}), history, cost_of(folder, training, rows))


def stages_of(recorded: Iterable[Event]) -> list[str]:
    """Return the name of the stage that wrote each event."""
    stages, stage = [], ""
    for event in recorded:
        stage = str(event.fields.get("stage", stage))
        stages.append(stage)
    return stages


def cost_of(folder: Path, training: Sequence[Event], rows: Sequence[Mapping[str, Any]]) -> Cost | None:
    sessions = sessions_of(training)
    if not sessions:
        return None
    rates = [float(row[RATE]) for row in rows if RATE in row]
    kinds = dict.fromkeys(name for row in rows for name in row if name.startswith(MEMORY))
    return Cost(
        time_s=sum(end - start for start, end in sessions) / 1000,
        num_sessions=len(sessions),
        samples_per_second=median(rates) if rates else None,
        energy_wh=energy_wh(events.read(folder / events.SYSTEM), sessions),
        memory_megabytes={name.removeprefix(MEMORY): max(float(row[name]) for row in rows if name in row) for name in kinds},
    )


def sessions_of(training: Iterable[Event]) -> list[tuple[int, int]]:
    """Return the first and the last time, in milliseconds, of each session: a training has several if it was interrupted."""
    sessions: list[list[int]] = []
    for event in training:
        if event.kind in ("start", "reopen"):
            sessions.append([event.time_ms, event.time_ms])
        elif sessions:
            sessions[-1][1] = max(sessions[-1][1], event.time_ms)
    return [(start, end) for start, end in sessions]


def energy_wh(samples: Iterable[Event], sessions: Sequence[tuple[int, int]]) -> float | None:
    """Return the energy in watt-hours that the GPUs used in the sessions: the integral of their sampled power.

    Return None if a session has no sample with a power, or if samples are missing for a long time.
    """
    powers = [
        (event.time_ms, sum(float(value) for name, value in event.fields["values"].items() if name.endswith(POWER)))
        for event in samples
        if event.kind == "metrics" and any(name.endswith(POWER) for name in event.fields["values"])
    ]
    joules = 0.0
    for start, end in sessions:
        inside = [(time_ms, watts) for time_ms, watts in powers if start <= time_ms <= end]
        if not inside:
            return None
        # The power before the first sample and after the last one is taken to be that of the nearest sample.
        curve = [(start, inside[0][1]), *inside, (end, inside[-1][1])]
        for (before, low), (after, high) in pairwise(curve):
            if after - before > LONGEST_GAP_S * 1000:
                return None
            joules += (low + high) / 2 * (after - before) / 1000
    return joules / 3600


@dataclass(frozen=True)
class Evaluation:
    """The scores of a model on the test split. `tables` is the folder of the CSV files of the evaluation.

    `origin` is the file that has the scores; "" if they were computed for the report.
    """

    scores: Mapping[str, Any]
    tables: Path
    origin: str

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

    path: Path
    digest: str
    model: Model
    manifest: Manifest
    evaluation: Evaluation
    trained: Mapping[str, Any] | None
    history: Sequence[recorded.Row] | None
    prepared: Prepared | None
    data: Path
    """The folder of `prepared`: `data/prepared/`, or links into DVC's cache."""
    run: RunRecord | None
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
        path = stack.enter_context(subject.located(name, paths, environment))
        folder = stack.enter_context(TemporaryDirectory(prefix="report-"))
        model, manifest = model_file.load(path)
        digest = files.digest(path)
        found = journal.find(environment.root, digest)
        run = read(found) if found else None
        of_checkout = paths.model.is_file() and files.digest(paths.model) == digest
        is_own = partial(is_data_of, manifest)
        data = stack.enter_context(dvc_cache.located(paths.prepared, paths.top, is_own))
        prepared = data_of(manifest, data)
        evaluation = recorded_evaluation(digest, paths) or evaluate_anew(model, manifest, prepared, environment, name, paths, Path(folder))
        trained = recorded.trained(paths.metrics / "train.json", manifest.step) if of_checkout else None
        yield Evidence(
            path=path,
            digest=digest,
            model=model,
            manifest=manifest,
            evaluation=evaluation,
            trained=trained,
            history=recorded.read_table(paths.history, "train") if trained is not None else run.history if run else None,
            prepared=prepared,
            data=data,
            run=run,
            params=params_of(manifest, run, paths, of_checkout=of_checkout),
            paths=paths,
        )


def is_data_of(manifest: Manifest, record: PreparedRecord) -> bool:
    return files.digest_of(record.model_dump(mode="json")) == manifest.inputs.get("data")


def data_of(manifest: Manifest, folder: Path) -> Prepared | None:
    """Return the prepared data in `folder` if the model was trained on it, else None. Raises Refusal if its files are damaged."""
    if not (folder / "spec.json").is_file() or not is_data_of(manifest, read_record(folder)):
        return None
    return Prepared.open(folder)


def recorded_evaluation(digest: str, paths: Paths) -> Evaluation | None:
    """Return the evaluation in `metrics/` and `plots/evaluate/` if it is of the model file with this digest, else None.

    Raises Refusal if the tables of a classification are missing or do not match the scores, as after an evaluation that was killed.
    """
    path = paths.metrics / "evaluate.json"
    if not path.is_file():
        return None
    scores, label = recorded.read(path)
    if label != digest[: recorded.DIGITS]:
        return None
    evaluation = Evaluation(scores, paths.evaluation_plots, str(path))
    rows = evaluation.table("confusion.csv")
    if rows is None and "per_class" in scores:
        raise Refusal(f"{paths.evaluation_plots}: has no confusion.csv, which belongs to {path}: run `dvc repro -f evaluate`")
    if rows is not None and (len(rows), sum(row["actual"] == row["predicted"] for row in rows) / max(1, len(rows))) != (
        scores["samples"],
        scores.get("accuracy"),
    ):
        raise Refusal(f"{paths.evaluation_plots}: has the tables of another evaluation than {path}: run `dvc repro -f evaluate`")
    return evaluation


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
    return Evaluation(scores, folder, "")


def params_of(manifest: Manifest, run: RunRecord | None, paths: Paths, *, of_checkout: bool) -> dict[str, Scalar]:
    """Return the parameters of the training by dotted key, with those of the source first if they are known.

    The parameters of the source come from the journal `run`. Without a journal, they come from `params.yaml`, if the model is that of this
    checkout (`of_checkout`). They are left out if the other parameters there differ from those of the model.
    """
    trained = flatten(manifest.params)
    known = run.params if run else flatten(Document.read(paths.params).data) if of_checkout and paths.params.is_file() else {}
    is_same = trained.items() <= known.items()
    return {name: value for name, value in known.items() if is_same and name.startswith("source.")} | trained
