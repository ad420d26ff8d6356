"""The verdict of `profile` flips when data, host or model is made slow, by many times the rest of a step; what is read from a trace, also from one
of a GPU, which is written by hand here; and the options of the verb.
"""

import gzip
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType

from pipeline.__main__ import main
from pipeline.core.prepared import Prepared
from pipeline.inference.batches import loader
from pipeline.tools.profile import profile
from pipeline.tools.profile.profile import VERDICTS, shares
from pipeline.tools.profile.trial import WAITING
from pipeline.train.params import TrainParams
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


@pytest.fixture
def profiled(capsys: pytest.CaptureFixture[str], prepared: Prepared) -> Callable[[TrainParams], str]:
    """`profiled(params)`: what `profile` prints for a training."""

    def run(params: TrainParams) -> str:
        profile.print_profile(params, prepared, CPU, None)
        return capsys.readouterr().out

    return run


def test_slow_data_is_named(params, profiled, monkeypatch: pytest.MonkeyPatch) -> None:
    original = loader.training

    def slow(*arguments, **keywords) -> Iterator:
        for batch in original(*arguments, **keywords):
            time.sleep(SLOW_S)
            yield batch

    monkeypatch.setattr(loader, "training", slow)
    assert "Most of the time goes into waiting for data (" in profiled(params)


def test_slow_augmentation_is_slow_data(params, profiled, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs when the micro-batches are made, not when the batch is read."""
    original = loader.Block.gather
    monkeypatch.setattr(loader, "BLOCK_BATCHES", 1)
    monkeypatch.setattr(loader.Block, "gather", lambda block, positions: (busy(None), original(block, positions))[1])
    assert "Most of the time goes into waiting for data (" in profiled(params)


def test_slow_python_code_is_named(params, profiled, before_each_forward) -> None:
    before_each_forward(busy)
    assert "Most of the time goes into launches (" in profiled(params)


def test_a_slow_model_is_named(params, profiled, before_each_forward) -> None:
    before_each_forward(multiply)
    lines = profiled(params).splitlines()
    assert any(line.startswith("Most of the time goes into computing (") for line in lines)
    assert "aten::mm " in next(line for line in lines if " aten::" in line)


def test_the_profile_tells_everything_that_was_measured(train_params, profiled) -> None:
    text = profiled(train_params({"train.batch_size": 16, "train.micro_batch_size": 4}))
    assert text.startswith("mlp on cpu")
    assert "in fp32, 16 samples in micro-batches of 4: " in text
    assert all(f"  {name} " in text for name in VERDICTS)


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


@pytest.mark.parametrize(
    ("waiting_ms", "kernels_ms", "copies_ms", "parts"),
    [
        (600, 1000, 0, (0, 0, 1)),  # a GPU that is never idle waits for nothing
        (300, 200, 100, (0.4, 0.4, 0.2)),  # an idle one waits as long as its host, and while it receives data
        (0, 1200, 500, (0, 0, 1)),  # kernels longer than the step fill it
    ],
)
def test_a_step_on_a_gpu_is_divided(waiting_ms: float, kernels_ms: float, copies_ms: float, parts: tuple[float, ...]) -> None:
    kinds = [
        ("gemm", 2 * kernels_ms - 6),
        ("Memcpy HtoD (Pinned -> Device)", 2 * copies_ms),
        ("Memcpy DtoD (Device -> Device)", 4),
        ("Memset", 2),
    ]
    work = [event(name, took_ms, device=DeviceType.CUDA) for name, took_ms in kinds]
    host = [event(WAITING, 2 * waiting_ms), event("aten::mm", 90), event("step", 3000)]
    found = shares([*work, *host, event("step", 3000, device=DeviceType.CUDA, annotates=True)], 2, 1.0, on_gpu=True)
    assert tuple(found.values()) == pytest.approx(parts)


def test_a_cpu_computes_in_operations_of_a_step_outside_of_its_wait_for_data() -> None:
    step = event("step", 100)
    waiting, backward = event(WAITING, 20, step), event("AddmmBackward0", 30, event("HookBackward", 1, step))
    counted = [event("aten::mm", 20, backward), event("custom::kernel", 5, step), event("## Call CompiledFxGraph ffkfd2q5", 2, step)]
    others = [step, waiting, backward, event("aten::index", 20, waiting), event("aten::index", 20, event("in another thread", 1))]
    assert tuple(shares(counted + others, 1, 0.05, on_gpu=False).values()) == pytest.approx((0.2, 0.53, 0.27))


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
    assert names.count(WAITING) == 2 * steps, "for the batch, and for its micro-batch"
    assert "aten::addmm" in names
    for words in (["--trace", "traces"], ["--speedup", "--trace", "trace.json"]):
        assert main(["profile", *words]) == 2
        assert "should be the name of a file, such as trace.json.gz, and stands without --speedup" in capsys.readouterr().err
