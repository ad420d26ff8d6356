"""Reads what a run recorded: where its model comes from, its metrics, what its training cost, and its ids in MLflow. Finds the run of a model."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from pipeline.core.refusal import Refusal
from pipeline.runs import events, journal
from pipeline.runs.events import Event

TRAIN, EVALUATE = "train", "evaluate"
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
class Record:
    """Reads what the journal in `folder` recorded about its run. The journal is read when the first of its events is needed."""

    folder: Path

    @cached_property
    def events(self) -> list[Event]:
        """Return the events that the stages recorded."""
        return list(events.read(self.folder / events.EVENTS))

    @property
    def name(self) -> str:
        """Return the name of the journal."""
        return self.folder.name

    @property
    def first(self) -> Mapping[str, Any]:
        """Return the fields of the first event, without reading the others; {} if there is none."""
        return next((event.fields for event in events.read(self.folder / events.EVENTS)), {})

    @property
    def digest(self) -> str | None:
        """Return the SHA-256 of the model file; None if the journal has no model."""
        try:
            return (self.folder / journal.MODEL_DIGEST).read_text(encoding="utf-8").strip()
        except OSError:
            return None

    @property
    def model_digest(self) -> str:
        """Return the SHA-256 of the model file.

        Raises Refusal if the journal has no model: the training did not finish, or it was a trial of a search, which keeps the model of its
        best trial.
        """
        if digest := self.digest:
            return digest
        searches = [fields["tags"][journal.SEARCH_TAG] for fields in self.begun if journal.SEARCH_TAG in fields["tags"]]
        if searches:
            raise Refusal(
                f"{self.name}: this run has no model: it is a trial of the search {searches[0]}, which keeps that of the best trial: "
                "repeat the search with --keep-models, or train this one again by `python -m pipeline trial FOLDER`"
            )
        raise Refusal(f"{self.name}: this run has no model, because its training did not finish: run `dvc repro`")

    @property
    def run_ids(self) -> dict[str, str]:
        """Return the id of the run in each MLflow store to which it was sent, by the `Address.key` of the store."""
        stores = events.read_stores(self.folder).items()
        return {key: str(store["run_id"]) for key, store in stores if isinstance(store, Mapping) and store.get("run_id")}

    @property
    def begun(self) -> list[Mapping[str, Any]]:
        """Return the fields of each event with which a stage began."""
        return [event.fields for event in self.events if event.kind in ("start", "reopen")]

    @cached_property
    def training(self) -> list[Event]:
        """Return the events of the stage `train`."""
        recorded, stage = [], ""
        for event in self.events:
            stage = event.fields.get("stage", stage)
            if stage == TRAIN:
                recorded.append(event)
        return recorded

    @property
    def last(self) -> Mapping[str, Any]:
        """Return the fields with which the training began the last time, or the evaluation if the journal has no training."""
        begun = [fields for fields in self.begun if fields["stage"] == TRAIN] or self.begun
        return begun[-1] if begun else {}

    @property
    def provenance(self) -> dict[str, Any]:
        """Return facts about the training, such as the git commit. The facts of an evaluation are not about the model."""
        begun = [fields for fields in self.begun if fields["stage"] != EVALUATE]
        return {name: fact for fields in begun for name, fact in fields.get("provenance", {}).items()}

    def metrics(self, *prefixes: str, step: int | None = None) -> dict[str, float]:
        """Return the last value, or that at `step`, of each metric whose name begins with one of `prefixes`, such as "test/"."""
        points = [event.fields for event in self.events if event.kind == "metrics"]
        of_step = [fields["values"] for fields in points if step in (None, fields["step"])]
        return {name: float(value) for values in of_step for name, value in values.items() if name.startswith(prefixes)}

    @property
    def rows(self) -> list[dict[str, Any]]:
        points = [event.fields for event in self.training if event.kind == "metrics"]
        return [
            {"step": each["step"], **each["values"]} for each in points if not next(iter(each["values"]), "").startswith(journal.EXPORTED)
        ]

    @property
    def cost(self) -> Cost | None:
        """Return the measured cost of the training; None if the journal has no training."""
        sessions, rows = sessions_of(self.training), self.rows
        if not sessions:
            return None
        rates = [float(row[RATE]) for row in rows if RATE in row]
        kinds = dict.fromkeys(name for row in rows for name in row if name.startswith(MEMORY))
        return Cost(
            time_s=sum(end - start for start, end in sessions) / 1000,
            num_sessions=len(sessions),
            samples_per_second=median(rates) if rates else None,
            energy_wh=energy_wh(events.read(self.folder / events.SYSTEM), sessions),
            memory_megabytes={name.removeprefix(MEMORY): max(float(row[name]) for row in rows if name in row) for name in kinds},
        )


def runs_of(root: Path) -> list[Record]:
    """Return the runs of the checkout `root`, oldest first."""
    return [Record(folder) for folder in journal.journals(root)]


def run_of_model(root: Path, digest: str) -> Record | None:
    """Return the newest run in the checkout `root` whose model file has this SHA-256; None if there is none."""
    return next((run for run in reversed(runs_of(root)) if run.digest == digest), None)


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
