"""Tests of the calculation of steps on many GPUs: its formulas against values computed by hand, its counts, and bad input."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import scaling, step_work
from benchmarks.scaling import Cluster, step
from benchmarks.step_work import PRESETS, Work
from pipeline.core.refusal import Refusal
from pipeline.core.yaml_document import Document
from tests.specs import image_spec

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


def test_an_all_reduce_in_a_node_moves_what_a_ring_moves() -> None:
    assert CLUSTER.all_reduce_s(450e9, 2, parts=0) == pytest.approx(2 * 1 / 2)
    assert CLUSTER.all_reduce_s(450e9, 8, parts=0) == pytest.approx(2 * 7 / 8)
    assert CLUSTER.all_reduce_s(450e9, 1, parts=3) == 0


def test_an_exchange_hides_behind_the_backward_pass_but_for_its_last_bucket() -> None:
    exchange_s = CLUSTER.all_reduce_s(10**9, 8, parts=39)
    assert step(WORK, 8, CLUSTER).exchange_s == pytest.approx(exchange_s / 39)
    fast = replace(WORK, sample_flops=0, sample_bytes=0)
    assert step(fast, 8, CLUSTER).exchange_s == pytest.approx(exchange_s - 2 / 3 * 100 * 5e-6)


def test_each_lane_of_a_process_is_a_pass_and_all_but_one_are_added() -> None:
    work = replace(WORK, sample_flops=0, sample_bytes=0, pass_bytes=0)
    found = step(work, 2, CLUSTER, lanes=8)
    assert found.compute_s == pytest.approx(4 * 100 * 5e-6)
    assert found.update_s == pytest.approx((7 + 3 * 3) * 1e9 / 4.8e12)


def test_full_sharding_gathers_the_weights_twice_in_each_pass_and_scatters_the_gradients_once() -> None:
    fast = replace(WORK, sample_flops=0, sample_bytes=0, pass_bytes=0, kernels=0, micro_batch_size=64)
    gather_s, scatter_s = (CLUSTER.one_way_s(size, 8, parts=10) for size in (0.5e9, 1e9))
    assert step(fast, 8, CLUSTER, sharded=True).exchange_s == pytest.approx(2 * 2 * gather_s + scatter_s)
    slow = replace(WORK, sample_flops=1e15)
    assert step(slow, 8, CLUSTER, sharded=True).exchange_s == pytest.approx((2 * gather_s + scatter_s) / 10)
    assert step(slow, 1, CLUSTER, sharded=True).exchange_s == 0


def test_what_limits_a_preset_is_named() -> None:
    launching = replace(WORK, sample_flops=0, sample_bytes=0, pass_bytes=0, gradient_bytes=1)
    assert (scaling.last_efficient(launching, CLUSTER), scaling.limit(launching, CLUSTER)) == (1, "launches")
    assert scaling.limit(WORK, Cluster(adapters=1)) == "exchange"
    assert scaling.limit(replace(WORK, batch_size=2, gradient_bytes=1), CLUSTER) == "batch_size"
    assert scaling.limit(replace(WORK, sample_flops=1e15), CLUSTER) == "nothing"


def test_the_counts_of_a_linear_layer_are_those_computed_by_hand() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 4, bias=False, dtype=torch.bfloat16, device="meta"))
    found = step_work.count(network, image_spec(shape=(2, 2, 3), classes="abcd", mean=(0.5,) * 3, std=(0.5,) * 3), 5)
    assert found.flops == 2 * 2 * 5 * 12 * 4  # the forward pass and the gradient of the weights: the inputs need none
    assert found.kernels >= 2
    assert found.moved_bytes >= 2 * 2 * (5 * 12 + 12 * 4 + 5 * 4)


@pytest.mark.slow
def test_a_step_of_a_billion_weights_computes_six_flops_a_weight_and_token() -> None:
    work = step_work.work_of_data("1 B", step_work.billion())
    assert 0.9e9 < work.num_weights < 1.1e9
    assert 1 < work.sample_flops / (6 * work.num_weights * 2048) < 1.25  # attention is beyond the six
    assert (work.blocks, work.gradient_bytes) == (18, 4 * work.num_weights)


def test_a_measured_step_replaces_the_calculated_one_and_of_much_arithmetic_launches_no_slower() -> None:
    for work, measured_s in itertools.product((WORK, replace(WORK, sample_flops=0, sample_bytes=0)), (1e-5, 2.5)):
        (found,) = scaling.with_measurements([work], {"work": measured_s}, CLUSTER)
        assert step(found, 1, CLUSTER).compute_s == pytest.approx(measured_s)
    (found,) = scaling.with_measurements([WORK], {"work": 2.5}, CLUSTER)
    assert step(found, 4, CLUSTER).compute_s == pytest.approx(2.5 / 4)
    assert found.kernels == WORK.kernels


def test_gpus_that_do_not_divide_batch_and_lanes_or_leave_a_node_incomplete_are_refused() -> None:
    for gpus, lanes in ((0, 1), (3, 1), (2048, 1), (8, 4), (2, 3), (1, 2048)):
        with pytest.raises(Refusal, match=f"{gpus} GPUs do not divide"):
            step(WORK, gpus, CLUSTER, lanes=lanes)
    with pytest.raises(Refusal, match="12 GPUs leave a node of 8 incomplete"):
        step(replace(WORK, batch_size=1200), 12, CLUSTER)


def test_tables_and_figure_have_every_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["digits", "cifar10-speedrun"]
    scaling.main([*(str(PRESETS / f"{name}.yaml") for name in names), "--figure", str(tmp_path / "figure.png")])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0].strip("| ") for line in lines if line.startswith(("| digits", "| cifar"))] == names * 2
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_wrong_command_line_is_refused_with_a_message(capsys) -> None:
    digits = str(PRESETS / "digits.yaml")
    for arguments, message in (
        (["nowhere.yaml"], "nowhere.yaml"),
        (["--rate", "0"], "must be a positive number"),
        (["--rate", "fast"], "invalid positive value"),
        (["--adapters", "9"], "invalid choice"),
        ([digits, "--measured", "digit=5"], "'digit' is none of the calculated presets: write one of digits"),
        ([digits, "--measured", "digits"], "invalid measured value"),
    ):
        with pytest.raises(SystemExit, match="2"):
            scaling.main(arguments)
        assert message in capsys.readouterr().err


def test_parameters_that_cannot_be_calculated_are_refused() -> None:
    data = Document.read(PRESETS / "digits.yaml").data
    changes = {
        "the calculation is for bf16, not fp32": ("train", {"precision": "fp32"}),
        "batch_size": ("train", {"batch_size": 0}),
        "the shape of the inputs of arrays is not known": ("source", {"name": "arrays", "duplicates": "keep"}),
    }
    for message, (section, values) in changes.items():
        with pytest.raises(Refusal, match=message):
            step_work.work_of_data("digits", {**data, section: {**data[section], **values}})


@pytest.mark.slow
def test_the_page_shows_what_is_calculated() -> None:
    """Presets with an LSTM are left out, because counting their operations takes seconds."""
    page = (PRESETS.parent / "docs/scaling.md").read_text(encoding="utf-8").splitlines()
    works = [work_of_preset(path.stem) for path in step_work.calculated_presets() if "lstm" not in path.stem]
    for table in (scaling.time_table(works, CLUSTER), scaling.switch_table(works, CLUSTER)):
        missing = [line for line in table.splitlines() if line not in page]
        assert not missing, "run `python -m benchmarks.scaling --figure docs/images/scaling.png` and put its tables into docs/scaling.md"
