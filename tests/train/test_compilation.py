"""What the compiler is told before it compiles; activations that are computed again; the memory format."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch._dynamo.config
import torch._inductor.config
from torch import nn
from torchvision import models

from pipeline.core.refusal import Refusal
from pipeline.core.spec import Spec
from pipeline.inference import machine
from pipeline.train import beginning, blocks
from tests import texts
from tests.conftest import preset
from tests.laws.test_resuming import AIRBENCH, CONVNET, OF_TEXT
from tests.train.engine.building import begin, exchanging, group_of_one, model_of, run, same, steps, weights
from tests.train.group import several


@pytest.mark.parametrize(("wish", "mode", "deterministic"), [("default", "default", True), ("graphs", "reduce-overhead", False)])
def test_the_compiler_is_as_deterministic_as_the_machine_and_compiles_each_size_by_itself(
    spec: Spec, monkeypatch: pytest.MonkeyPatch, wish: Literal["default", "graphs"], mode: str, deterministic: bool
) -> None:
    before, told = torch.are_deterministic_algorithms_enabled(), {}

    def compiler(network: nn.Module, **settings: object) -> nn.Module:
        told.update(settings, deterministic=torch._inductor.config.deterministic)
        return network

    monkeypatch.setattr("torch.compile", compiler)
    torch.use_deterministic_algorithms(not deterministic)
    try:
        machine.set_determinism(deterministic)
        beginning.compiled(model_of(nn.Flatten(), spec, channels_last=False), wish, lanes=1)
    finally:
        torch.use_deterministic_algorithms(before)
    assert told == {"mode": mode, "dynamic": False, "deterministic": deterministic}


def test_a_training_whose_graphs_are_captured_learns_the_same(train_params, prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """The captured graphs run without generated code; `make test-slow` generates it."""
    compiler, backends = torch.compile, []

    def capture(network: nn.Module, *, mode: str, dynamic: bool) -> nn.Module:
        backends.append(mode)
        return compiler(network, backend="aot_eager", dynamic=dynamic)

    monkeypatch.setattr("torch.compile", capture)
    plain, captured = (run(begin(train_params({**steps(8), "train.compile": wish}), prepared))[-1].metrics for wish in ("off", "default"))
    assert backends == ["default"]
    assert captured == pytest.approx(plain, rel=1e-4)


@pytest.fixture(autouse=True)
def restored_limits() -> Iterator[None]:
    """Restore what `compiled` sets. monkeypatch would delete these settings, because the module computes its attributes."""
    limits = {"recompile_limit": 8, "accumulated_recompile_limit": 256, "fail_on_recompile_limit_hit": False, "optimize_ddp": True}
    with torch._dynamo.config.patch(limits):
        yield


def test_every_length_and_size_is_compiled_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where some ran uncompiled, a resumed training would compile others, and end in other bytes."""
    compiler, compiled = torch.compile, set()

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        compiled.add(next(tensor.shape for tensor in inputs if tensor.dtype == torch.int32))
        return graph.forward

    monkeypatch.setattr("torch.compile", lambda network, *, dynamic, **_: compiler(network, backend=backend, dynamic=dynamic))
    prepared = texts.texts()
    forward = beginning.compiled(model_of(nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 2)), prepared.spec), "default", lanes=1)
    shapes = {(size, length) for length in range(2, 7) for size in (2, 3)}
    with torch.no_grad():
        for shape in sorted(shapes):
            forward(torch.ones(shape, dtype=torch.int32))
    assert compiled == shapes


@pytest.mark.parametrize(("lanes", "is_whole"), [(2, True), pytest.param(1, False, marks=pytest.mark.slow)])
def test_with_lanes_a_model_is_compiled_as_a_whole_also_where_gradients_are_exchanged(
    train_params, prepared, monkeypatch: pytest.MonkeyPatch, lanes: int, is_whole: bool
) -> None:
    """Cut where a bucket of gradients ends, it would round elsewhere than in one process. With one lane, the cut lets the exchange begin early."""
    compiler, graphs = torch.compile, set()

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., object]:
        graphs.add(str(graph.graph))
        return graph.forward

    monkeypatch.setattr("torch.compile", lambda network, *, dynamic, **_: compiler(network, backend=backend, dynamic=dynamic))
    monkeypatch.setattr("torch.distributed._DEFAULT_FIRST_BUCKET_BYTES", 1)
    params = train_params({**steps(1), "train.compile": "default", "train.lanes": lanes, "train.precision": "bf16", "source.valid": 0.0})
    run(begin(params, prepared))
    alone = graphs.copy()
    graphs.clear()
    torch.compiler.reset()
    with group_of_one("gloo"):
        run(exchanging(begin(params, prepared)))
    assert (graphs == alone) is is_whole


@pytest.mark.parametrize("model", [CONVNET, AIRBENCH], ids=lambda model: model["name"])
def test_recomputing_activations_changes_no_byte(train_params, prepared, model) -> None:
    changes = {"model": model, **steps(3), "train.batch_size": 16, "train.micro_batch_size": 8}
    trainings = [begin(train_params({**changes, "train.activation_checkpointing": recomputing}), prepared) for recomputing in (False, True)]
    for training in trainings:
        run(training)
    assert same(*(training.state.tensors() for training in trainings))


def test_activations_are_forgotten_and_computed_again(train_params, prepared) -> None:
    calls: dict[bool, int] = {}
    for recomputing in (False, True):
        training = begin(train_params({"model": CONVNET, "train.activation_checkpointing": recomputing}), prepared)
        counted = next(module for module in training.state.model.modules() if isinstance(module, torch.nn.Conv2d))
        seen = []
        counted.register_forward_hook(lambda *_, seen=seen: seen.append(1))
        training.state.model.train()
        training.state.model(torch.zeros(4, 8, 8, 1, dtype=torch.uint8)).sum().backward()
        calls[recomputing] = len(seen)
    assert calls == {False: 1, True: 2}


def test_a_model_without_blocks_is_refused(train_params, prepared, monkeypatch) -> None:
    monkeypatch.setattr(blocks, "blocks", lambda _network: [])
    with pytest.raises(Refusal, match=r"train\.activation_checkpointing: the model mlp has no blocks"):
        begin(train_params({"train.activation_checkpointing": True}), prepared)


DENSE = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3, groups=2))
WHERE = [("cpu", "fp32"), ("cpu", "bf16"), ("cuda", "fp32"), ("cuda", "bf16"), ("cuda", "fp16"), ("cuda", "bf16-true")]
RULE: dict[str, tuple[Any, list[bool]]] = {
    "dense": (lambda: DENSE, [True, True, False, True, True, True]),
    "resnet18": (models.resnet18, [True, True, False, True, True, True]),
    "mobilenet": (models.mobilenet_v3_small, [True, False, False, True, True, True]),
    "a vision transformer": (models.vit_b_16, [False] * 6),
    "no convolution": (lambda: nn.Linear(2, 2), [False] * 6),
}


@pytest.mark.parametrize(("build", "expected"), RULE.values(), ids=RULE)
def test_auto_selects_by_device_precision_and_convolutions(train_params, build, expected: list[bool]) -> None:
    settings = train_params({"train.channels_last": "auto"}).train
    divided = train_params({"train.channels_last": "auto", "train.sharding": "full"}).train
    with torch.device("meta"):
        network = build()
    found = [beginning.choose_channels_last(settings, network, precision, torch.device(device)) for device, precision in WHERE]  # type: ignore[arg-type]
    assert found == expected
    assert not beginning.choose_channels_last(divided, network, "bf16", torch.device("cuda")), "FSDP2 needs weights in contiguous order"
    for value in (True, False):
        fixed = train_params({"train.channels_last": value}).train
        assert beginning.choose_channels_last(fixed, network, "bf16", torch.device("cuda")) is value


def test_auto_trains_to_the_bytes_of_the_value_that_it_selects(train_params, prepared) -> None:
    changes = {**steps(4), "model": CONVNET, "train.precision": "fp32"}
    trained = [begin(train_params({**changes, "train.channels_last": value}), prepared) for value in ("auto", True, False)]
    for training in trained:
        run(training)
    auto, chosen, other = (training.state for training in trained)
    expected = beginning.is_channels_last_faster(auto.model.network, "fp32", auto.device)
    assert auto.model.channels_last is expected
    assert same(weights(auto), weights(chosen if expected else other))


@pytest.mark.slow
def test_with_lanes_two_processes_that_compile_end_in_the_bytes_of_one(tmp_path: Path) -> None:
    """The network has a megabyte of weights, after which DDP begins another bucket."""
    changes = {
        "model": texts.TRANSFORMER | {"width": 128, "depth": 3},
        "train.lanes": 2,
        "train.compile": "default",
        "train.precision": "bf16",
    }
    params, data = preset({**OF_TEXT, **steps(2), **changes}), texts.texts()
    alone, together = (several.train(count, several.Run(params, data, tmp_path / str(count), 2))[0] for count in (1, 2))
    assert same(alone.exported, together.exported)
    assert alone.rows == together.rows
