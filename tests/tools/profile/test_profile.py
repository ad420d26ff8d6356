"""The verdict of `profile` flips when data, host or model is made slow, by many times the rest of a step; what is read from a trace, also from one
of a GPU, which is written by hand here; and the options of the verb.
"""

import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType

from pipeline.__main__ import main
from pipeline.inference.batches import loader
from pipeline.tools.profile import profile
from pipeline.tools.profile.profile import (
    VERDICTS,
    Profile,
    Traced,
    profile_training,
    shares,
    traced,
)
from pipeline.tools.profile.trial import WAITING
from tests import project
from tests.tools.profile.conftest import CPU

SLOW_S = 0.02


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "BLOCK_S", 0.01)
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
    result = profile_training(*setup)
    assert result.shares[largest] > 0.5
    assert f"Most of the time goes into {largest} (" in "\n".join(result.lines())
    return result


def test_slow_data_is_named(setup, monkeypatch: pytest.MonkeyPatch) -> None:
    original = loader.training

    def slow(*arguments, **keywords) -> Iterator:
        for batch in original(*arguments, **keywords):
            time.sleep(SLOW_S)
            yield batch

    monkeypatch.setattr(loader, "training", slow)
    profiled_with("waiting for data", setup)


def test_slow_python_code_is_named(setup, before_each_forward) -> None:
    before_each_forward(busy)
    profiled_with("launches", setup)


def test_a_slow_model_is_named(setup, before_each_forward) -> None:
    before_each_forward(multiply)
    result = profiled_with("computing", setup)
    first = next(line for line in result.operations.splitlines() if " aten::" in line)
    assert "aten::mm " in first


def test_the_profile_tells_everything_that_was_measured(train_params, prepared) -> None:
    result = profile_training(train_params({"train.batch_size": 16, "train.micro_batch_size": 4}), prepared, CPU)
    text = "\n".join(result.lines())
    assert "mlp on cpu" in text
    assert "in fp32, 16 samples in micro-batches of 4" in text
    for name in VERDICTS:
        assert name in text
    assert result.operations in text
    assert sum(result.shares.values()) == pytest.approx(1)
    assert all(share > 0 for share in result.shares.values())


DIVISIONS: dict[str, tuple[float, Traced, bool, tuple[float, ...]]] = {
    "a gpu that is never idle waits for nothing": (1.0, Traced(0.6, 1.0, 0, 1.5), True, (0, 0, 1)),
    "an idle gpu waits for data as long as its host, and while it receives some": (1.0, Traced(0.3, 0.2, 0.1, 1.5), True, (0.4, 0.4, 0.2)),
    "kernels longer than the step fill it": (1.0, Traced(0, 1.2, 0.5, 1.5), True, (0, 0, 1)),
    "a cpu divides a step as under the profiler": (1.0, Traced(0.4, 1.2, 0, 2.0), False, (0.2, 0.2, 0.6)),
}


@pytest.mark.parametrize(("step_s", "traced", "on_gpu", "parts"), DIVISIONS.values(), ids=DIVISIONS)
def test_a_step_is_divided(step_s: float, traced: Traced, on_gpu: bool, parts: tuple[float, ...]) -> None:
    assert tuple(shares(step_s, traced, on_gpu=on_gpu).values()) == pytest.approx(parts)


def event(
    name: str, took_ms: float, parent: object = None, *, device: DeviceType = DeviceType.CPU, annotates: bool = False
) -> SimpleNamespace:
    """Return what PyTorch's profiler gives for an event that took so long; in an operation on a CPU, without those that it called."""
    elapsed = SimpleNamespace(elapsed_us=lambda: 1e3 * took_ms)
    return SimpleNamespace(
        name=name,
        self_cpu_time_total=1e3 * took_ms,
        time_range=elapsed,
        cpu_parent=parent,
        device_type=device,
        is_user_annotation=annotates,
    )


def test_a_gpu_computes_in_kernels_and_receives_data_in_copies() -> None:
    kinds = [("gemm", 20), ("Memcpy HtoD (Pinned -> Device)", 6), ("Memcpy DtoD (Device -> Device)", 4), ("Memset", 2)]
    work = [event(name, took_ms, device=DeviceType.CUDA) for name, took_ms in kinds]
    others = [event(WAITING, 8), event("aten::mm", 90), event("step", 100), event("step", 100, device=DeviceType.CUDA, annotates=True)]
    assert traced(work + others, 2, on_gpu=True) == pytest.approx((0.004, 0.013, 0.003, 0.05))


def test_a_cpu_computes_in_operations_of_a_step_outside_of_its_wait_for_data() -> None:
    step = event("step", 5)
    waiting, backward = event(WAITING, 5, step), event("AddmmBackward0", 30, event("HookBackward", 1, step))
    counted = [event("aten::mm", 20, backward), event("custom::kernel", 5, step), event("## Call CompiledFxGraph ffkfd2q5", 2, step)]
    others = [step, waiting, backward, event("aten::index", 20, waiting), event("aten::index", 20, event("in another thread", 1))]
    assert traced(counted + others, 1, on_gpu=False) == pytest.approx((0.005, 0.027, 0.0, 0.005))


def test_a_trace_has_the_steps_and_wrong_options_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project.make(tmp_path))
    assert main(["prepare"]) == 0
    assert main(["profile", "--trace", "traces/first.json.gz"]) == 0
    assert "trace: traces/first.json.gz: open it at https://ui.perfetto.dev" in capsys.readouterr().out
    document = json.loads(gzip.decompress(Path("traces/first.json.gz").read_bytes()))
    names = [event["name"] for event in document["traceEvents"]]
    assert 0 < (steps := names.count("step")) <= 3, "fewer on busy cores"
    assert names.count(WAITING) == 2 * steps, "a wait for each batch and its micro-batch"
    assert "aten::addmm" in names
    for words in (["--trace", "traces"], ["--speedup", "--trace", "trace.json"]):
        assert main(["profile", *words]) == 2
        assert "should be the name of a file, such as trace.json.gz, and stands without --speedup" in capsys.readouterr().err
