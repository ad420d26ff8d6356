"""Captured steps on a CPU: a stand-in for a CUDA graph repeats the operations of the recording with the arguments of the recording.

A number that Python had is frozen in it, as in a CUDA graph, and a tensor is read where it was.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pipeline.core.prepared import Prepared
from pipeline.inference import cuda_graphs
from pipeline.inference.batches.blocks import BlockBatch
from pipeline.inference.cuda_graphs import LITTLE_MEMORY, Graphs, NotRecorded, Recording
from pipeline.inference.machine import Machine
from pipeline.train import training
from pipeline.train.engine import captured, step, update
from pipeline.train.engine.step import Numbers
from pipeline.train.training import Training
from tests import texts
from tests.laws.test_resuming import ADAM, AIRBENCH, COMMON, CONVNET, MUON, OF_TEXT, SGD, assert_same_end
from tests.train.engine.building import begin


class Operations(TorchDispatchMode):
    """Records operations, with their arguments and results. The first `replay` does nothing, because the recording has executed them."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[tuple[Callable[..., Any], Any, Any, Any]] = []
        self.is_new = True

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket is torch.ops.aten._local_scalar_dense:
            raise RuntimeError("operation not permitted when stream is capturing")
        result = function(*args, **(kwargs or {}))
        self.recorded.append((function, args, kwargs or {}, result))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        if self.is_new:
            self.is_new = False
            return
        for function, args, kwargs, result in self.recorded:
            found = function(*args, **kwargs)
            if not any(each.alias_info for each in function._schema.returns):  # else it is a view, or has changed its argument
                for place, value in zip(tree_leaves(result), tree_leaves(found), strict=True):
                    if isinstance(place, Tensor):
                        place.copy_(value)


def record(graphs: Graphs, recording: Recording, function: Callable[..., Any], inputs: Sequence[Tensor]) -> str | None:
    """Do what `Graphs.record` does, with Operations instead of a CUDA graph."""
    own = tuple(each.clone() for each in inputs)
    try:
        with Operations() as operations:
            recording.result = function(*own)
    except NotRecorded as error:
        return str(error)
    recording.graph, recording.inputs = operations, own  # type: ignore[assignment]
    return None


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let all trainings read the numbers of a step as on a GPU. Return a function after whose call they are captured."""
    monkeypatch.setattr(step, "Numbers", lambda state, **_: Numbers(state, on_gpu=True))

    def replayed() -> None:
        monkeypatch.setattr(Training, "why_eager", None)
        monkeypatch.setattr(Graphs, "__post_init__", lambda _: None)
        monkeypatch.setattr(Graphs, "record", record)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(cuda_graphs, "watched", lambda function, *inputs: (function(*inputs), None))

    return replayed


LONG = {"train.steps": 12, "train.validate_every_steps": 2}
PLAIN = {**SGD, "momentum": 0.0, "nesterov": False}
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw, skip": ("images", {"model": CONVNET, "train.on_nonfinite": "skip"}),
    "every step reported, lanes": (
        "images",
        {"model": CONVNET, "train.lanes": 4, "train.micro_batch_size": 2, "train.report_every_steps": 1},
    ),
    "adam in fp16, mixed": ("images", {"model": CONVNET, "optimizer": ADAM, "train.precision": "fp16", "augment.mixup": 0.4}),
    "nothing measured, skip": (
        "images",
        {"model": CONVNET, "optimizer": PLAIN, "train.clip_norm": None, "train.ema_decay": 0.0, "train.on_nonfinite": "skip"},
    ),
    "muon": ("images", {"model": AIRBENCH, "optimizer": MUON, "train.on_nonfinite": "skip"}),
    "texts of many lengths": ("texts", {"model": texts.TRANSFORMER, "train.batch_size": 2, "train.micro_batch_size": 2, "train.steps": 40}),
    "language model": ("corpus", {"model": texts.TRANSFORMER_LANGUAGE_MODEL, "optimizer": SGD, "train.precision": "fp32"}),
}
QUICK = ("adamw, skip", "every step reported, lanes", "language model")


def trained(train_params, prepared: Prepared, recipe: str) -> Training:
    kind, changes = RECIPES[recipe]
    data = prepared if kind == "images" else getattr(texts, kind)()
    training = begin(train_params({**(COMMON if kind == "images" else OF_TEXT), **LONG, **changes}), data)
    list(training.reports())
    return training


@pytest.fixture
def overflowing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the gradients of three steps infinite: those of the first, and of two that are replayed."""
    accumulate = update.accumulate_gradients

    def spoiling(state, *given, **more):
        found = accumulate(state, *given, **more)
        if state.step + 1 in (1, 6, 8) and (state.skip_nonfinite or state.scaler.is_enabled()):
            torch._foreach_mul_([parameter.grad for parameter in state.parameters if parameter.grad is not None], torch.inf)
        return found

    monkeypatch.setattr(update, "accumulate_gradients", spoiling)


@pytest.mark.usefixtures("overflowing")
@pytest.mark.parametrize("recipe", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in RECIPES])
def test_a_captured_training_ends_in_the_same_bytes(train_params, prepared: Prepared, replay, monkeypatch, recipe: str) -> None:
    # as if batches had more or fewer targets
    monkeypatch.setattr(BlockBatch, "num_targets", property(lambda self: 16 + int(self.batch_index.targets.sum()) % 5))
    eager = trained(train_params, prepared, recipe)
    found: list[Graphs] = []
    monkeypatch.setattr(captured, "Graphs", lambda *given: found.append(Graphs(*given)) or found[-1])
    replay()
    assert_same_end(eager, trained(train_params, prepared, recipe))
    (graphs,) = found
    assert not graphs.stopped
    assert {key[0] for key, recording in graphs.recordings.items() if recording.graph} >= {"update", ("micro-batch", True)}


def test_steps_with_gradients_of_fewer_parameters_end_the_capture_and_change_nothing(train_params, replay, capsys) -> None:
    """As with short texts here, for which all layers but the last get no gradient."""
    params = train_params({**OF_TEXT, **LONG, "model": texts.TRANSFORMER, "train.batch_size": 2, "train.micro_batch_size": 1})
    ends = []
    for _ in range(2):
        training, lengths = begin(params, texts.texts()), [0]
        network = training.state.model.network
        *_, last = (module for module in network.modules() if isinstance(module, nn.Linear))
        network.register_forward_pre_hook(lambda _, inputs, lengths=lengths: lengths.append(inputs[0].shape[1]))
        last.register_forward_pre_hook(lambda _, inputs, lengths=lengths: inputs[0].detach() if lengths[-1] < 10 else None)
        list(training.reports())
        ends.append(training)
        replay()
    assert "a step has gradients of other parameters than the step before" in capsys.readouterr().out
    assert_same_end(*ends)


def test_shapes_beyond_the_bound_stay_eager_and_change_nothing(train_params, prepared: Prepared, replay, monkeypatch, capsys) -> None:
    recipe = "every step reported, lanes"
    eager = trained(train_params, prepared, recipe)
    replay()
    monkeypatch.setattr(cuda_graphs, "MOST_GRAPHS", 1)
    assert_same_end(eager, trained(train_params, prepared, recipe))
    assert "inputs of further shapes, because there are" in capsys.readouterr().out


def test_a_function_is_watched_then_recorded_and_only_a_lack_of_memory_ends_the_capture_quietly(replay, monkeypatch, capsys) -> None:
    replay()
    watched = Mock(wraps=cuda_graphs.watched)
    monkeypatch.setattr(cuda_graphs, "watched", watched)
    replays = Mock(side_effect=[None, RuntimeError("broken"), torch.OutOfMemoryError("CUDA out of memory")])
    monkeypatch.setattr(Operations, "replay", replays)
    graphs, inputs = Graphs(torch.device("cpu"), "train"), [torch.ones(2)]
    counts = []
    for _ in range(3):
        graphs.run("double", inputs, torch.Tensor.double)
        counts.append((watched.call_count, graphs.num_graphs))
    assert counts == [(0, 0), (1, 0), (1, 1)]
    with pytest.raises(RuntimeError, match="broken"):
        graphs.run("double", inputs, torch.Tensor.double)
    assert torch.equal(graphs.run("double", inputs, torch.Tensor.double), inputs[0].double())
    assert graphs.num_graphs == 0
    assert capsys.readouterr().out == f"train: not captured as CUDA graphs, which changes no result: {LITTLE_MEMORY}\n"


def test_beside_the_graphs_of_the_compiler_gradients_are_copied_out_of_its_memory(
    train_params, prepared: Prepared, replay, monkeypatch
) -> None:
    monkeypatch.setattr(training, "compiled", lambda model, _mode, **_: model)
    replay()
    params = train_params({**COMMON, **LONG, "model": CONVNET, "train.compile": "graphs", "train.micro_batch_size": 16})
    trained, made = begin(params, prepared), []
    for parameter in trained.state.parameters:
        parameter.register_post_accumulate_grad_hook(lambda each: made.append(each.grad.detach()))
    list(trained.reports())
    placed = {parameter.grad.data_ptr() for parameter in trained.state.parameters}
    assert placed.isdisjoint(gradient.data_ptr() for gradient in made)


ON_GPU = Machine(torch.device("cuda"), 1)


@pytest.mark.parametrize(
    ("machine", "changes", "reason"),
    [
        (ON_GPU, {"train.steps": 200}, None),
        (ON_GPU, {}, "fewer than 100 steps are left"),
        (replace(ON_GPU, graphs="on"), {}, None),
        (replace(ON_GPU, graphs="off"), {"train.steps": 200}, "PIPELINE_GRAPHS is off"),
        (replace(ON_GPU, device=torch.device("cpu"), graphs="on"), {"train.steps": 200}, "there is no GPU"),
        (ON_GPU, {"train.steps": 200, "train.activation_checkpointing": True, "model": CONVNET}, "activations are computed again"),
    ],
)
def test_the_reason_why_a_training_is_not_captured(train_params, prepared: Prepared, machine: Machine, changes, reason: str | None) -> None:
    training = begin(train_params(COMMON | changes), prepared)
    training.machine = machine
    assert training.why_eager == reason
