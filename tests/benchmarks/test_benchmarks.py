"""The benchmark itself: its clock, its ratios, and that nobody skips work unseen."""

import math
import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import report
from benchmarks.__main__ import Measured, refuse_unequal_losses
from benchmarks.gate import Gate
from benchmarks.job import Bare, Job, images
from benchmarks.ways import data, pipeline
from benchmarks.worker import Block, Worker
from pipeline.runtime.machine import Machine
from pipeline.seeding import reseed

JOB = Job("mlp", Path(), batch_size=32, warmup_steps=2, block_steps=10, rounds=2, workers=0)
HERE = Machine(torch.device("cpu"), torch.get_num_threads())


class Line:
    """The other end of a worker's connection: it says `go` at once, and keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list = []

    def send(self, said: object) -> None:
        self.heard.append(said)

    def recv(self) -> str:
        return "go"


def test_a_block_is_told_after_its_last_step_and_the_first_steps_are_not_timed() -> None:
    line = Line()
    gate = Gate(line, JOB)
    told = []
    for _ in range(JOB.steps + 5):
        gate.step()
        told.append(len(line.heard))
    assert [step for step in range(1, len(told)) if told[step] > told[step - 1]] == [1, 11, 21]
    assert line.heard[0] is None
    assert all(seconds > 0 for seconds in line.heard[1:])


def test_ratios_are_of_blocks_of_one_round() -> None:
    seconds = {"floor": [1.0, 2.0, 4.0], "data": [1.0, 1.0, 1.0], "pipeline": [2.0, 3.0, 10.0]}
    blocks = {way: [Block(taken_s, 2.0) for taken_s in taken] for way, taken in seconds.items()}
    measured = Measured(JOB, blocks, {way: {"loss": None, "megabytes": 0.0} for way in blocks})
    assert report.ratios(measured, "pipeline") == (2.0, 1.5, 2.5)
    assert report.ratios(measured, "pipeline", ("floor", "data")) == (1.0, 1.0, 2.0)
    assert report.ratios(measured, "pipeline", spent="processor_s") == (1.0, 1.0, 1.0)
    assert "pipeline by floor + data, time: 1.000 (1.000 to 2.000)" in report.table(measured)
    assert "pipeline by floor + data, processor time: 0.500 (0.500 to 0.500)" in report.table(measured)


@pytest.mark.parametrize("num_models", [1, 2])
def test_the_figure_has_the_ways_from_the_top_down(tmp_path: Path, num_models: int) -> None:
    from matplotlib import pyplot

    blocks = {way: [Block(1.0, 1.0)] for way in ("floor", "pipeline", "tensors")}
    report.draw(tmp_path / "figure.png", [Measured(JOB, blocks, {})] * num_models)
    figure = pyplot.gcf()
    assert [axes.yaxis_inverted() for axes in figure.axes] == [True] * num_models
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["pipeline", "tensors"]
    pyplot.close(figure)


@pytest.mark.parametrize("loss", [1.2, 0.8, math.nan, math.inf])
def test_a_way_that_did_other_work_ends_the_benchmark(loss: float) -> None:
    said = {way: {"loss": 1.0} for way in ("pipeline", "tensors")} | {"floor": {"loss": None}}
    refuse_unequal_losses("mlp", said)
    with pytest.raises(SystemExit, match=r"mlp: tensors had a mean loss of .*, the pipeline of 1.000"):
        refuse_unequal_losses("mlp", said | {"tensors": {"loss": loss}})


def test_all_ways_begin_with_the_same_weights_and_the_pipeline_trains_as_it_does_alone(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    (tmp_path / "work").mkdir()
    prepared, line = images(), Line()
    pipeline.train(JOB, prepared, HERE, Gate(line, JOB))
    assert len(line.heard) == 1 + JOB.rounds + 1
    assert 1.0 < line.heard[-1]["loss"] < 3.0
    reseed(torch.device("cpu"), 1, "weights")
    network = JOB.params().model.build(prepared.spec)
    bare = Bare.begin(replace(JOB, workers=3), prepared, HERE)
    assert all(torch.equal(one, other) for one, other in zip(network.parameters(), bare.network.parameters(), strict=True))


def test_the_data_path_alone_makes_as_many_batches() -> None:
    line = Line()
    data.train(JOB, images(), HERE, Gate(line, JOB))
    assert len(line.heard) == 1 + JOB.rounds + 1


def test_the_loop_without_tracking_leaves_no_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setenv("PIPELINE_TRACKING", "true")
    (tmp_path / "work").mkdir()
    pipeline.train(JOB, images(), HERE, Gate(Line(), JOB), tracked=False)
    assert not (tmp_path / ".pipeline").exists()


def test_the_processor_time_of_a_way_is_that_of_its_process() -> None:
    worker = Worker("floor", SimpleNamespace(pid=os.getpid()), Line())
    before_s, deadline_s = worker.processor_s(), time.process_time() + 0.2
    while time.process_time() < deadline_s:
        pass
    assert 0.1 < worker.processor_s() - before_s < 5


def test_nobody_waits_for_a_mirror_that_there_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("it waits"))
    pipeline.await_mirror(tmp_path)
