"""The benchmarks: ratios, loops that skip work, runs beside airbench, calculated steps on many GPUs, and `tests.gpu.measure`."""

import math
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import report, scaling, speedrun, step_work
from benchmarks.__main__ import refuse_unequal_losses
from benchmarks.block_timer import BlockTimer
from benchmarks.job import BareTraining, Job, synthetic_images
from benchmarks.loops import pipeline
from benchmarks.scaling import Cluster, step
from benchmarks.speedrun import Trained
from benchmarks.step_work import PRESETS, Work
from benchmarks.worker import Block
from pipeline.core.prepared import Prepared
from pipeline.core.refusal import Refusal
from pipeline.core.seeding import reseed
from pipeline.core.yaml_document import Document
from pipeline.inference.machine import Machine, set_determinism
from tests.gpu import measure
from tests.gpu.measure import Step
from tests.imports import TOP
from tests.laws.test_resuming import AIRBENCH, MUON
from tests.specs import image_spec

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


def test_the_table_is_written_after_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last_row = Step("last row", ("tail", "-n", "1", str(tmp_path / "table.md")))
    chosen = [Step("passing tests", ("echo", "3 passed in 1s\nbye")), last_row, Step("slow", ("sleep", "60")), Step("left out", ("true",))]
    monkeypatch.setattr(measure, "steps", lambda *_: iter(chosen))
    monkeypatch.setattr(sys, "argv", ["measure", "tests", "--output", str(tmp_path), "--limit-s", "2"])
    assert measure.main() == 1
    table = re.sub(r"\b\d+ \|", "# |", (tmp_path / "table.md").read_text())
    assert table.splitlines()[2:] == [
        "| passing tests | ok | # | 3 passed in 1s |",
        "| last row | ok | # | | passing tests | ok | # | 3 passed in 1s | |",
        "| slow | timed out | # |  |",
        "| left out | not begun | | |",
    ]
    assert (tmp_path / "passing-tests.log").read_text() == "3 passed in 1s\nbye\n"


def test_every_file_of_gpu_tests_is_run() -> None:
    assert {path.relative_to(TOP).as_posix() for path in (TOP / "tests/gpu").glob("test_*.py")} <= set(measure.TESTS)


CPU_MACHINE = Machine(torch.device("cpu"), torch.get_num_threads())
GPU = Machine(torch.device("cuda", 0), 2)


@pytest.fixture
def tested(prepared: Prepared) -> Iterator[Prepared]:
    """Data with a train and a test split."""
    yield replace(prepared, splits={"train": prepared.splits["train"], "test": prepared.splits["train"]})
    set_determinism(False)


def test_a_run_of_the_pipeline_depends_on_its_seed_only_and_learns(train_params, tested) -> None:
    changes = {"model": AIRBENCH, "optimizer": MUON, "train.epochs": None, "train.export_weights": "last"}
    params = train_params(changes | {"train.steps": 30})
    first, again = (speedrun.train_pipeline(params, tested, CPU_MACHINE) for _ in range(2))
    assert first.accuracy == again.accuracy > 0.5  # three classes
    assert again.elapsed_s > 0
    assert again.before_s > 0
    assert speedrun.train_pipeline(train_params(changes | {"train.steps": 1}), tested, CPU_MACHINE).accuracy < first.accuracy


def test_the_table_compares_run_by_run() -> None:
    found = {"pipeline": [Trained(0.94, 2.0, 1.0), Trained(0.95, 3.0, 1.5)], "airbench": [Trained(0.93, 4.0), Trained(0.93, 3.0)]}
    assert speedrun.table(found).splitlines()[2:] == [
        "| pipeline | 0.9450 | 0.0050 | 2.500 | 2.000 | 3.000 |",
        "| airbench | 0.9300 | 0.0000 | 3.500 | 3.000 | 4.000 |",
        "| steps and scoring / airbench | | | 0.750 | 0.500 | 1.000 |",
        "| with setup / airbench | | | 1.125 | 0.750 | 1.500 |",
    ]


CLUSTER = Cluster()
WORK = Work(
    "work",
    batch_size=1024,
    micro_batch_size=1024,
    sample_flops=400e9,
    sample_bytes=48e6,
    pass_bytes=48e6,
    kernels=100,
    num_weights=250_000_000,
    gradient_bytes=10**9,
    blocks=9,
)


def work_of_preset(name: str) -> Work:
    return step_work.work_of_data(name, Document.read(PRESETS / f"{name}.yaml").data)


def test_computation_takes_as_long_as_its_slowest_part() -> None:
    assert step(WORK, 1, CLUSTER)[:2] == (pytest.approx(1024 * 400e9 / 400e12), 0.0)
    assert step(WORK, 1, CLUSTER).bound == "arithmetic"
    moving = step(replace(WORK, sample_flops=0), 1, CLUSTER)
    assert (moving.compute_s, moving.bound) == (pytest.approx(1025 * 48e6 / 4.8e12), "memory")
    launching = step(replace(WORK, sample_flops=0, sample_bytes=0), 1, CLUSTER)
    assert (launching.compute_s, launching.bound) == (pytest.approx(100 * 5e-6), "launches")


def test_an_exchange_hides_behind_the_backward_pass_but_for_its_last_bucket() -> None:
    exchange_s = CLUSTER.all_reduce_s(10**9, 8, parts=39)
    assert step(WORK, 8, CLUSTER).exchange_s == pytest.approx(exchange_s / 39)
    fast = replace(WORK, sample_flops=0, sample_bytes=0)
    assert step(fast, 8, CLUSTER).exchange_s == pytest.approx(exchange_s - 2 / 3 * 100 * 5e-6)


def test_full_sharding_gathers_the_weights_twice_in_each_pass_and_scatters_the_gradients_once() -> None:
    fast = replace(WORK, sample_flops=0, sample_bytes=0, pass_bytes=0, kernels=0, micro_batch_size=64)
    gather_s, scatter_s = (CLUSTER.one_way_s(size, 8, parts=10) for size in (0.5e9, 1e9))
    assert step(fast, 8, CLUSTER, sharded=True).exchange_s == pytest.approx(2 * 2 * gather_s + scatter_s)
    slow = replace(WORK, sample_flops=1e15)
    assert step(slow, 8, CLUSTER, sharded=True).exchange_s == pytest.approx((2 * gather_s + scatter_s) / 10)
    assert step(slow, 1, CLUSTER, sharded=True).exchange_s == 0


def test_the_counts_of_a_linear_layer_are_those_computed_by_hand() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 4, bias=False, dtype=torch.bfloat16, device="meta"))
    found = step_work.count(network, image_spec(shape=(2, 2, 3), classes="abcd", mean=(0.5,) * 3, std=(0.5,) * 3), 5)
    assert found.flops == 2 * 2 * 5 * 12 * 4  # the forward pass and the gradient of the weights: the inputs need none
    assert found.kernels >= 2
    assert found.moved_bytes >= 2 * 2 * (5 * 12 + 12 * 4 + 5 * 4)


def test_gpus_that_do_not_divide_batch_and_lanes_or_leave_a_node_incomplete_are_refused() -> None:
    for gpus, lanes in ((0, 1), (3, 1), (2048, 1), (8, 4), (2, 3), (1, 2048)):
        with pytest.raises(Refusal, match=f"{gpus} GPUs do not divide"):
            step(WORK, gpus, CLUSTER, lanes=lanes)
    with pytest.raises(Refusal, match="12 GPUs leave a node of 8 incomplete"):
        step(replace(WORK, batch_size=1200), 12, CLUSTER)


@pytest.mark.slow
def test_the_page_shows_what_is_calculated() -> None:
    """Presets with an LSTM are left out, because counting their operations takes seconds."""
    page = (PRESETS.parent / "docs/scaling.md").read_text(encoding="utf-8").splitlines()
    works = [work_of_preset(path.stem) for path in step_work.calculated_presets() if "lstm" not in path.stem]
    for table in (scaling.time_table(works, CLUSTER), scaling.switch_table(works, CLUSTER)):
        missing = [line for line in table.splitlines() if line not in page]
        assert not missing, "run `python -m benchmarks.scaling --figure docs/images/scaling.png` and put its tables into docs/scaling.md"
