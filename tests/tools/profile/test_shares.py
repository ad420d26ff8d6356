"""How the time of a step is divided, and what is read from a trace, also from one of a GPU, which is written by hand here."""

import gzip
import json
from pathlib import Path

import pytest
import torch

from pipeline.tools.profile.shares import Timed, Traced, is_operation, occupancy, shares, traced
from pipeline.tools.profile.trial import WAITING, Trial, stepping
from tests.train.engine.building import HERE


def seen(computing_s: float, copying_s: float = 0.0, stepping_s: float = 1.0) -> Traced:
    return Traced(computing_s, copying_s, stepping_s, [], {})


DIVISIONS: dict[str, tuple[Timed, Traced, bool, tuple[float, ...]]] = {
    "a gpu that is never idle waits for nothing": (Timed(1.0, 0.6, 0.4), seen(0.95, 0.05), True, (0, 0.05, 0.95, 0, 0)),
    "an idle gpu waits for data as long as its host": (Timed(1.0, 0.3, 0.7), seen(0.2, 0.1), True, (0.3, 0.1, 0.2, 0.4, 0)),
    "an idle gpu whose host sleeps is idle": (Timed(1.0, 0.0, 0.25), seen(0.2), True, (0, 0, 0.2, 0.2, 0.6)),
    "a host that waits for a cpu is not idle": (Timed(1.0, 0.0, 0.25, 0.5), seen(0.2), True, (0, 0, 0.2, 0.6, 0.2)),
    "kernels longer than the step fill it": (Timed(1.0, 0.0, 1.0), seen(1.2, 0.5), True, (0, 0, 1, 0, 0)),
    "a cpu computes as under the profiler": (Timed(1.0, 0.2, 0.8), seen(1.2, stepping_s=1.6), False, (0.2, 0, 0.6, 0.2, 0)),
    "a cpu that waits for data computes nothing": (Timed(1.0, 1.0, 0.0), seen(0.0, stepping_s=0.0), False, (1, 0, 0, 0, 0)),
}


@pytest.mark.parametrize(("timed", "traced", "on_gpu", "parts"), DIVISIONS.values(), ids=DIVISIONS)
def test_a_step_is_divided(timed: Timed, traced: Traced, on_gpu: bool, parts: tuple[float, ...]) -> None:
    found = shares(timed, traced, on_gpu=on_gpu)
    assert (found.data, found.copying, found.computing, found.host, found.idle) == pytest.approx(parts)


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
