"""The verdict of `profile` flips when data, host or model is made slow, by many times the rest of a step; and what is read from a trace, also from one
of a GPU, which is written by hand here.
"""

import gzip
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pipeline.inference.batches import loader
from pipeline.tools.profile import profile
from pipeline.tools.profile.profile import VERDICTS, Profile, Timed, Traced, is_operation, occupancy, profile_training, shares, traced
from pipeline.tools.profile.trial import WAITING, Trial, stepping
from tests import texts
from tests.tools.profile.conftest import CPU, LOOP
from tests.train.engine.building import HERE

SLOW_S = 0.02


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "WARMUP_STEPS", 2)
    monkeypatch.setattr(profile, "MOST_TRACED", 3)


def busy(_: object) -> None:
    """Run Python code for SLOW_S seconds of CPU time."""
    end_s = time.process_time() + SLOW_S
    while time.process_time() < end_s:
        pass


def multiply(_: object) -> None:
    matrix = torch.ones(700, 700)
    torch.mm(matrix, matrix)


def profiled_with(largest: str, setup) -> Profile:
    result = profile_training(*setup, steps=5)
    assert result.largest == largest
    assert result.shares[largest] > 0.5
    return result


def test_slow_data_is_named(setup, monkeypatch: pytest.MonkeyPatch) -> None:
    original = loader.training

    def slow(*arguments, **keywords) -> Iterator:
        for batch in original(*arguments, **keywords):
            time.sleep(SLOW_S)
            yield batch

    monkeypatch.setattr(loader, "training", slow)
    assert "Most of the time goes into waiting for data (" in "\n".join(profiled_with("waiting for data", setup).lines())


def test_slow_augmentation_is_slow_data(setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs when the micro-batches are made, not when the batch is read."""
    original = loader.Block.gather
    monkeypatch.setattr(loader, "BLOCK_BATCHES", 1)
    monkeypatch.setattr(loader.Block, "gather", lambda block, positions: (busy(None), original(block, positions))[1])
    profiled_with("waiting for data", setup)


def test_slow_python_code_is_named(setup, before_each_forward) -> None:
    before_each_forward(busy)
    profiled_with("launches", setup)


def test_a_slow_model_is_named(setup, before_each_forward) -> None:
    before_each_forward(multiply)
    result = profiled_with("computing", setup)
    first = next(line for line in result.traced.operations.splitlines() if " aten::" in line)
    assert "aten::mm " in first


def test_the_profile_tells_everything_that_was_measured(train_params, prepared) -> None:
    result = profile_training(train_params({"train.batch_size": 16, "train.micro_batch_size": 4}), prepared, CPU, steps=11)
    text = "\n".join(result.lines())
    assert "mlp on cpu" in text
    assert "in fp32, 16 samples in micro-batches of 4" in text
    assert "(15 steps after warm-up" in text, "a multiple of the blocks"
    for name in VERDICTS:
        assert name in text
    assert result.traced.operations in text
    assert "memory: " in text
    assert sum(result.shares.values()) == pytest.approx(1)
    crowded, alone = (replace(result, timed=result.timed._replace(cpu_wait_s=share * result.timed.step_s)) for share in (0.5, 0.0))
    assert "Other processes use the CPUs: for 50% of the time" in "\n".join(crowded.lines())
    assert "Other processes" not in "\n".join(alone.lines())


def test_a_model_of_texts_is_profiled(train_params) -> None:
    result = profile_training(train_params({"model": texts.LSTM, **texts.UNAUGMENTED, **LOOP}), texts.texts(), CPU, steps=5)
    assert "lstm on cpu" in result.title


def seen(computing_s: float, copying_s: float = 0.0, stepping_s: float = 1.0) -> Traced:
    return Traced(computing_s, copying_s, stepping_s, "", {})


DIVISIONS: dict[str, tuple[Timed, Traced, bool, tuple[float, ...]]] = {
    "a gpu that is never idle waits for nothing": (Timed(1.0, 0.6), seen(1.0), True, (0, 0, 1)),
    "an idle gpu waits for data as long as its host, and while it receives some": (Timed(1.0, 0.3), seen(0.2, 0.1), True, (0.4, 0.4, 0.2)),
    "kernels longer than the step fill it": (Timed(1.0, 0.0), seen(1.2, 0.5), True, (0, 0, 1)),
    "a cpu computes as under the profiler": (Timed(1.0, 0.2), seen(1.2, stepping_s=1.6), False, (0.2, 0.2, 0.6)),
    "a cpu that waits for data computes nothing": (Timed(1.0, 1.0), seen(0.0, stepping_s=0.0), False, (1, 0, 0)),
}


@pytest.mark.parametrize(("timed", "traced", "on_gpu", "parts"), DIVISIONS.values(), ids=DIVISIONS)
def test_a_step_is_divided(timed: Timed, traced: Traced, on_gpu: bool, parts: tuple[float, ...]) -> None:
    assert tuple(shares(timed, traced, on_gpu=on_gpu).values()) == pytest.approx(parts)


def span(category: str, name: str, begin_ms: float, end_ms: float) -> dict:
    return {"ph": "X", "cat": category, "name": name, "ts": 1e3 * begin_ms, "dur": 1e3 * (end_ms - begin_ms)}


GPU = [
    {"ph": "M", "name": "process_name"},
    span("user_annotation", "step", 0, 50),
    span("user_annotation", "step", 50, 100),
    span("user_annotation", WAITING, 0, 10),
    span("gpu_user_annotation", "step", 0, 100),
    span("cpu_op", "aten::mm", 10, 90),
    span("kernel", "gemm", 20, 40),
    span("kernel", "relu", 30, 50),
    span("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 45, 60),
    span("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 70, 74),
    span("gpu_memset", "Memset", 74, 76),
]


def test_a_gpu_computes_in_kernels_and_copies_where_no_kernel_runs() -> None:
    """Kernels take 30 ms and other work on the device 6 ms; of the copy from the host, 5 ms run beside a kernel. There are two steps."""
    assert occupancy(GPU, 2, on_gpu=True) == pytest.approx((0.018, 0.005, 0.045))


def test_a_cpu_computes_in_operations_outside_of_its_wait_for_data() -> None:
    events = [
        span("user_annotation", "step", 0, 100),
        span("user_annotation", WAITING, 0, 30),
        span("cpu_op", "aten::index", 5, 25),
        span("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 30, 90),
        span("cpu_op", "AddmmBackward0", 30, 90),
        span("cpu_op", "aten::mm", 40, 60),
        span("cpu_op", "aten::resolve_conj", 41, 42),
    ]
    assert occupancy(events, 1, on_gpu=False) == pytest.approx((0.02, 0.0, 0.07))


def test_python_code_is_no_operation() -> None:
    operations = ["aten::mm", "custom::kernel", "## Call CompiledFxGraph ffkfd2q5"]
    others = ["torch::autograd::AccumulateGrad", "MyFunctionBackward", "CompiledFunctionBackward"]
    assert [name for name in operations + others if is_operation({"cat": "cpu_op", "name": name})] == operations
    assert not is_operation({"cat": "user_annotation", "name": "Optimizer::step"})


def test_a_trace_is_a_json_file_with_the_steps_and_without_the_name_of_the_machine(params, prepared, tmp_path: Path) -> None:
    trial = Trial.of(params, prepared, HERE)
    with stepping(trial) as reports:
        next(reports)
        found = traced(trial, reports, 3, tmp_path)
    for name in ("written.json", "written.json.gz"):
        found.write(tmp_path / name)
    content = (tmp_path / "written.json").read_bytes()
    assert gzip.decompress((tmp_path / "written.json.gz").read_bytes()) == content
    document = json.loads(content)
    names = [event["name"] for event in document["traceEvents"]]
    assert names.count("step") == 3
    assert names.count(WAITING) == 6, "a wait for each batch and its micro-batch"
    assert "aten::addmm" in names
    assert "host_name" not in document
    assert 0 < found.computing_s < found.stepping_s
    assert found.copying_s == 0
    assert "aten::addmm" in found.operations
    assert not torch.autograd._profiler_enabled()
