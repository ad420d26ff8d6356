"""Tests of the benchmark: its timer, its ratios, and that it detects a loop that skips work."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import report
from benchmarks.__main__ import refuse_unequal_losses
from benchmarks.block_timer import BlockTimer
from benchmarks.job import TEXT_MODELS, BareTraining, Job, synthetic_images
from benchmarks.loops import floor, pipeline, tensors, tutorial
from benchmarks.worker import Block
from pipeline.core.seeding import reseed
from pipeline.inference.machine import Machine

JOB = Job("mlp", Path(), batch_size=32, warmup_steps=2, block_steps=10, rounds=2, workers=0)
MACHINE = Machine(torch.device("cpu"), torch.get_num_threads())


class Line:
    """The other end of a worker's connection: it answers `go` at once and records what it receives."""

    def __init__(self) -> None:
        self.received: list = []

    def send(self, message: object) -> None:
        self.received.append(message)

    def recv(self) -> str:
        return "go"


def test_a_block_is_reported_after_its_last_step_and_warmup_steps_are_not_timed() -> None:
    line = Line()
    timer = BlockTimer(line, JOB)
    counts = []
    for _ in range(JOB.steps + 5):
        timer.step()
        counts.append(len(line.received))
    assert [step for step in range(1, len(counts)) if counts[step] > counts[step - 1]] == [1, 11, 21]
    assert line.received[0] is None
    assert all(seconds > 0 for seconds in line.received[1:])


def test_ratios_compare_blocks_of_the_same_round() -> None:
    seconds = {"floor": [1.0, 2.0, 4.0], "data": [1.0, 1.0, 1.0], "pipeline": [2.0, 3.0, 10.0]}
    blocks = {loop: [Block(taken_s, 2.0) for taken_s in taken] for loop, taken in seconds.items()}
    measurement = report.Measurement(JOB, blocks, {loop: {"loss": None, "megabytes": 0.0} for loop in blocks})
    assert report.ratios(measurement, "pipeline") == (2.0, 1.5, 2.5)
    assert report.ratios(measurement, "pipeline", ("floor", "data")) == (1.0, 1.0, 2.0)
    assert report.ratios(measurement, "pipeline", spent="processor_s") == (1.0, 1.0, 1.0)
    assert "pipeline / (floor + data), time: 1.000 (1.000 to 2.000)" in report.table(measurement)
    assert "pipeline / (floor + data), CPU time: 0.500 (0.500 to 0.500)" in report.table(measurement)


def test_a_loop_with_another_mean_loss_ends_the_benchmark() -> None:
    results = {loop: {"loss": 1.0} for loop in ("pipeline", "tensors")} | {"floor": {"loss": None}}
    refuse_unequal_losses("mlp", results)
    for loss in (1.2, 0.8, math.nan, math.inf):
        with pytest.raises(SystemExit, match=r"mlp: tensors had a mean loss of .*, the pipeline of 1.000"):
            refuse_unequal_losses("mlp", results | {"tensors": {"loss": loss}})


def test_all_loops_begin_with_the_same_weights_and_the_pipeline_trains(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    (tmp_path / "work").mkdir()
    prepared, line = synthetic_images(), Line()
    pipeline.train(JOB, prepared, MACHINE, BlockTimer(line, JOB))
    assert len(line.received) == 1 + JOB.rounds + 1
    assert 1.0 < line.received[-1]["loss"] < 3.0
    reseed(torch.device("cpu"), 1, "weights")
    network = JOB.params().model.build(prepared.spec)
    bare = BareTraining.begin(replace(JOB, workers=3), prepared, MACHINE)
    assert all(torch.equal(one, other) for one, other in zip(network.parameters(), bare.network.parameters(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("model", TEXT_MODELS)
def test_the_loops_train_text_models_to_the_same_loss(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    (tmp_path / "work").mkdir()
    job = replace(JOB, model=model)
    prepared, results = job.prepared(), {}
    for loop in (pipeline, tensors, tutorial, floor):
        line = Line()
        loop.train(job, prepared, MACHINE, BlockTimer(line, job))
        results[loop.__name__.rpartition(".")[2]] = line.received[-1]
    assert results["floor"]["loss"] is None
    refuse_unequal_losses(model, results)


def test_the_loop_without_tracking_leaves_no_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setenv("PIPELINE_TRACKING", "true")
    (tmp_path / "work").mkdir()
    pipeline.train(JOB, synthetic_images(), MACHINE, BlockTimer(Line(), JOB), tracked=False)
    assert not (tmp_path / ".pipeline").exists()
