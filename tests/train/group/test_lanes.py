"""The lanes of a batch in one process: their gradients, buffers, dropout, and an OOM among them. `laws/test_processes.py` has several processes."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeline.core.params import from_data
from pipeline.core.prepared import Prepared
from pipeline.inference.batch import Batch
from pipeline.train.engine.state import Progress, TrainState
from pipeline.train.engine.step import Step, StepSettings
from pipeline.train.engine.update import accumulate_gradients, update
from pipeline.train.group.lanes import ONE_LANE, BufferSnapshot, Lanes, Sums, tree_sum
from pipeline.train.group.processes import ALONE
from pipeline.train.params import TrainParams
from tests import texts
from tests.conftest import MLP, preset
from tests.faults.test_memory import STEP, Shortage, with_micro_batch_changes
from tests.laws.test_resuming import COMMON, CONVNET, MUON, OF_TEXT
from tests.train.engine.building import Identity, begin, exchanging, group_of_one, objective_of, run, same

SIZE, WIDTH = 16, 5
CPU = torch.device("cpu")
SETTINGS = StepSettings(seed=1, learning_rate=0.1, clip_norm=None, measures_norm=True, may_split=True)
OPTIMIZER = from_data(preset({"model": MLP}), TrainParams, "test").optimizer


class LaneBatch:
    """A batch of given samples in lanes of equal size."""

    def __init__(self, inputs: Tensor, targets: Tensor, lanes: int) -> None:
        self.lanes = list(zip(inputs.chunk(lanes), targets.chunk(lanes), strict=True))
        self.num_targets = len(targets)
        self.lane_size = len(self.lanes[0][1])

    def num_parts(self, max_size: int) -> int:
        return -(-len(self.lanes[0][1]) // max_size)

    def parts(self, max_size: int, lane: int = 0):
        return (Batch(*part) for part in zip(*(tensor.split(max_size) for tensor in self.lanes[lane]), strict=True))


def samples(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(SIZE, WIDTH, generator=generator, dtype=dtype), torch.arange(SIZE) % 3


def state_of(network: nn.Module, lanes: int, *, skip_nonfinite: bool = False) -> TrainState:
    return TrainState.begin(
        Identity(network),
        OPTIMIZER,
        precision="fp32",
        ema_decay=0.0,
        device=CPU,
        skip_nonfinite=skip_nonfinite,
        lanes=Lanes(ALONE, lanes) if lanes > 1 else ONE_LANE,
    )


def network_of(dtype: torch.dtype, *more: nn.Module) -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(WIDTH, 6), *more, nn.Tanh(), nn.Linear(6, 3)).to(dtype)


def accumulated(state: TrainState, batch: LaneBatch, max_size: int) -> Sums:
    step = Step(state, objective_of(), state.model)
    step.begin(batch.num_targets, SETTINGS.learning_rate)
    return accumulate_gradients(state, batch, max_size, seed=SETTINGS.seed, step=step)


def gradients(network: nn.Module, lanes: int, *, max_size: int, dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    """Return the loss of a step in `lanes` lanes with micro-batches of at most `max_size` samples, and its gradients."""
    state = state_of(network, lanes)
    batch = LaneBatch(*samples(dtype), lanes)
    loss, _ = accumulated(state, batch, max_size)
    return loss, [parameter.grad.clone() for parameter in network.parameters()]


@pytest.mark.parametrize("rows", [1, 8])
def test_neighbours_are_added_first_then_their_sums(rows: int) -> None:
    values = torch.randn(rows, 1000, generator=torch.Generator().manual_seed(1))
    expected = list(values)
    while len(expected) > 1:
        expected = [first + second for first, second in zip(expected[::2], expected[1::2], strict=True)]
    assert torch.equal(tree_sum(values), expected[0])
    assert rows < 4 or not torch.equal(expected[0], sum(values)), "the order of additions is visible in the bits"


@pytest.mark.parametrize(("lanes", "max_size"), [(1, 16), (2, 3), (8, 1)])
def test_the_gradients_of_all_lanes_are_those_of_the_whole_batch(lanes: int, max_size: int) -> None:
    inputs, targets = samples(torch.float64)
    network = network_of(torch.float64)
    expected = torch.nn.functional.cross_entropy(network(inputs), targets)
    wanted = torch.autograd.grad(expected, list(network.parameters()))
    loss, found = gradients(network, lanes, max_size=max_size, dtype=torch.float64)
    assert abs(loss / SIZE - expected) < 1e-12
    assert all(torch.allclose(one, other, rtol=0, atol=1e-12) for one, other in zip(found, wanted, strict=True))


def test_the_gradients_of_lanes_are_added_along_the_tree() -> None:
    """To the bit: so any subtree of lanes may be computed by another process."""
    lanes = 8
    inputs, targets = samples(torch.float32)
    network = network_of(torch.float32)
    rows = []
    for lane in zip(inputs.chunk(lanes), targets.chunk(lanes), strict=True):
        loss = torch.nn.functional.cross_entropy(network(lane[0]), lane[1], reduction="sum") / SIZE
        rows.append(torch.autograd.grad(loss, list(network.parameters())))
    _, found = gradients(network, lanes, max_size=SIZE, dtype=torch.float32)
    assert all(torch.equal(one, tree_sum(torch.stack(each))) for one, each in zip(found, zip(*rows, strict=True), strict=True))


class Forgetful(nn.Module):
    """Multiplies by a number that falls with every call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.ones(()))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = inputs * self.factor.clone()
        self.factor.copy_(self.factor / 2)
        return outputs


def test_each_lane_begins_with_the_buffers_before_the_step() -> None:
    """As the first lane of another process does."""
    _, plain = gradients(network_of(torch.float32), 4, max_size=SIZE, dtype=torch.float32)
    network = network_of(torch.float32, Forgetful())
    _, found = gradients(network, 4, max_size=SIZE, dtype=torch.float32)
    assert all(torch.equal(*pair) for pair in zip(found, plain, strict=True))
    assert network[1].factor == 0.5


def test_a_snapshot_restores_buffers_of_every_type_and_memory_format() -> None:
    module = nn.Module()
    for name, buffer in {
        "images": torch.zeros(1, 4, 2, 2).contiguous(memory_format=torch.channels_last),
        "count": torch.tensor(3),
        "flags": torch.tensor([True, False]),
        "halves": torch.ones(3, dtype=torch.bfloat16),
    }.items():
        module.register_buffer(name, buffer)
    before, snapshot = copy.deepcopy(module.state_dict()), BufferSnapshot(module)
    for restore in (snapshot.put_back, lambda: snapshot.put_back_where(torch.tensor(1.0))):
        snapshot.keep()
        for buffer in module.buffers():
            buffer.copy_(~buffer if buffer.dtype == torch.bool else buffer + 1)
        restore()
        assert same(before, module.state_dict())


def test_the_buffers_are_those_of_the_first_lane() -> None:
    network = network_of(torch.float32, nn.BatchNorm1d(6))
    gradients(network, 4, max_size=2, dtype=torch.float32)
    alone = network_of(torch.float32, nn.BatchNorm1d(6))
    with torch.no_grad():
        for part in samples(torch.float32)[0].chunk(4)[0].split(2):
            alone(part)
    assert same(network.state_dict(), alone.state_dict())


def masks(lanes: int) -> list[Tensor]:
    """Return what dropout leaves of ones, micro-batch by micro-batch: 8 micro-batches of 2 samples."""
    network = nn.Sequential(nn.Dropout(0.5), nn.Linear(WIDTH, 3))
    state, found = state_of(network, lanes), []
    network[0].register_forward_hook(lambda *call: found.append(call[-1].clone()))
    batch = LaneBatch(torch.ones(SIZE, WIDTH), samples(torch.float32)[1], lanes)
    accumulated(state, batch, 2)
    return found


def test_dropout_of_the_first_lane_draws_as_without_lanes_and_the_others_draw_anew() -> None:
    without, with_lanes = masks(1), masks(4)
    assert torch.equal(torch.stack(with_lanes[:2]), torch.stack(without[:2]))
    assert len({str(mask.tolist()) for mask in with_lanes}) == len(with_lanes)


def test_a_skipped_step_leaves_weights_and_buffers_as_they_were() -> None:
    """Also if only the last lane has a loss that is not finite."""
    network = network_of(torch.float32, nn.BatchNorm1d(6))
    state, (inputs, targets) = state_of(network, 4, skip_nonfinite=True), samples(torch.float32)
    inputs[-1] = torch.inf
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    update(state, LaneBatch(inputs, targets, 4), Progress(SIZE), SETTINGS, Step(state, objective_of(), state.model))
    assert same(network.state_dict(), before)


@pytest.mark.parametrize(("where", "call"), [pytest.param("forward", 1, marks=pytest.mark.slow), ("backward", 3)], ids=["lane 1", "lane 3"])
def test_a_step_that_ran_out_of_memory_in_a_lane_is_repeated_as_if_it_had_begun_so(
    train_params, prepared, monkeypatch, where: str, call: int
) -> None:
    """Each lane of 5 samples is one micro-batch before, and micro-batches of at most 2 samples after."""
    params = train_params({**COMMON, "model": CONVNET, "train.lanes": 4})
    expected, training = with_micro_batch_changes(params, prepared, (STEP, 2)), begin(params, prepared)
    with monkeypatch.context() as patch:
        shortage = Shortage(training, patch, where=where, call=call)
        run(training)
    assert shortage.times == 0
    assert training.progress.micro_batch_changes == [{"step": STEP, "micro_batch_size": 2}]
    assert same(training.state.tensors(), expected.state.tensors())
    assert training.progress.rows == expected.progress.rows


def last_loss(params: TrainParams, prepared: Prepared) -> float:
    return float(run(begin(params, prepared))[-1].metrics["train/objective"])


TEXT: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer, recomputed": ("texts", {"model": texts.TRANSFORMER | {"dropout": 0.0}, "train.activation_checkpointing": True}),
    "language model: lstm": ("corpus", {"model": texts.LSTM_LANGUAGE_MODEL | {"dropout": 0.0}}),
    "pairs: transformer": ("pairs", {"model": texts.ENCODER_DECODER | {"dropout": 0.0}}),
}


@pytest.mark.parametrize(("data", "changes"), TEXT.values(), ids=TEXT)
def test_a_network_without_batch_norm_and_dropout_learns_the_same_with_lanes(train_params, data: str, changes: dict[str, Any]) -> None:
    split = getattr(texts, data)()
    without, with_lanes = (
        last_loss(train_params({**OF_TEXT, "train.steps": 4, **changes, "train.lanes": lanes}), split) for lanes in (1, 2)
    )
    assert with_lanes == pytest.approx(without, rel=1e-5)


@pytest.mark.parametrize("lanes", [1, 4], ids=["added by the backend", "added in order"])
def test_gradients_that_are_exchanged_with_no_other_process_stay_as_they_are(train_params, prepared, lanes: int) -> None:
    """Through DDP and its communication hook, to the bit. `tests/gpu/test_lanes.py` does the same with NCCL."""
    params = train_params({**COMMON, "model": CONVNET, "optimizer": MUON, "train.lanes": lanes, "train.channels_last": True})
    plain = begin(params, prepared)
    run(plain)
    with group_of_one("gloo"):
        exchanged = exchanging(begin(params, prepared))
        run(exchanged)
    assert exchanged.state.lanes.wrapped is not None
    assert same(plain.state.tensors(), exchanged.state.tensors())
