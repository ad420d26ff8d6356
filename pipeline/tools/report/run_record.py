"""Reads the journal of a run: the parameters and the provenance of the training, and its time, memory and energy."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from pipeline.core.section import Scalar
from pipeline.tracking import events
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
