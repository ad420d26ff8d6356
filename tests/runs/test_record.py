"""What a journal measured: the time of all sessions of a training, the median rate and the energy of the GPUs."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.runs import events
from pipeline.runs.record import Record

RATE = "train/samples_per_second"


def journal(folder: Path, lines: list[dict[str, Any]], watts: list[tuple[int, float]] = []) -> Path:  # noqa: B006  # not changed
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps({"tags": {}, "params": {}, **line}) + "\n" for line in lines)
    (folder / events.EVENTS).write_text(text)
    samples = [
        {"kind": "metrics", "time_ms": time_ms, "step": 0, "values": {"system/gpu_0_power_usage_watts": power, "system/x": 1.0}}
        for time_ms, power in watts
    ]
    (folder / events.SYSTEM).write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return folder


def metrics(time_ms: int, step: int, **values: float) -> dict[str, Any]:
    return {"kind": "metrics", "time_ms": time_ms, "step": step, "values": values}


INTERRUPTED = [
    {"kind": "start", "time_ms": 0, "stage": "train", "params": {"source.name": "digits"}, "provenance": {"git.commit": "a"}},
    metrics(1_000, 10, **{RATE: 100.0, "valid/loss": 2.0, "memory/allocated_megabytes": 5.0}),
    metrics(2_000, 20, **{RATE: 300.0, "memory/allocated_megabytes": 7.0}),
    {"kind": "reopen", "time_ms": 60_000, "stage": "train", "params": {"source.name": "digits"}, "provenance": {"git.commit": "b"}},
    metrics(61_000, 30, **{RATE: 200.0}),
    {"kind": "end", "time_ms": 62_000, "status": "FINISHED"},
    {"kind": "reopen", "time_ms": 900_000, "stage": "evaluate", "params": {}, "provenance": {"git.commit": "c"}},
    metrics(901_000, 30, **{"test/accuracy": 0.5}),
]


def test_the_time_is_that_of_the_sessions_of_the_training_alone(tmp_path: Path) -> None:
    found = Record(journal(tmp_path, INTERRUPTED))
    assert found.cost
    assert (found.cost.time_s, found.cost.num_sessions, found.cost.samples_per_second) == (4.0, 2, 200.0)
    assert found.cost.memory_megabytes == {"allocated_megabytes": 7.0}
    assert found.cost.energy_wh is None
    assert found.provenance == {"git.commit": "b"}
    assert found.last["params"] == {"source.name": "digits"}


def test_the_energy_is_the_integral_of_the_power_during_the_sessions(tmp_path: Path) -> None:
    watts = [(500, 100.0), (1_500, 200.0), (30_000, 9_999.0), (61_000, 50.0)]
    found = Record(journal(tmp_path, INTERRUPTED, watts))
    assert found.cost
    first, second = 0.5 * 100 + 1.0 * 150 + 0.5 * 200, 2.0 * 50
    assert found.cost.energy_wh == pytest.approx((first + second) / 3600)


def test_the_energy_is_unknown_if_samples_are_missing_for_long(tmp_path: Path) -> None:
    lines = [INTERRUPTED[0], {"kind": "end", "time_ms": 1_000_000, "status": "FINISHED"}]
    found = Record(journal(tmp_path, lines, [(1_000, 100.0), (999_000, 100.0)]))
    assert found.cost
    assert found.cost.energy_wh is None


def test_the_journal_of_an_evaluation_has_no_training(tmp_path: Path) -> None:
    found = Record(journal(tmp_path, INTERRUPTED[6:]))
    assert found.cost is None
    assert (found.provenance, found.last["provenance"]) == ({}, {"git.commit": "c"})
