"""One update: accumulation, clipping, scaling and smoothing, each against its definition."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pipeline.inference import precision
from pipeline.inference.precision import ChosenPrecision
from pipeline.train.engine.metrics import Row
from pipeline.train.engine.state import Progress, TrainState
from pipeline.train.engine.step import Step, StepSettings
from pipeline.train.engine.update import update
from tests.train.engine.building import ADAMW, MUON, SGD, Identity, Parts, objective_of, same

MOMENTUM = SGD.model_copy(update={"weight_decay": 0.0})
PLAIN = MOMENTUM.model_copy(update={"momentum": 0.0, "nesterov": False})


def network(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)


def state_of(
    module: nn.Module, *, settings=PLAIN, used: ChosenPrecision = "fp32", ema_decay: float = 0.0, skip_nonfinite: bool = False
) -> TrainState:
    return TrainState.begin(
        Identity(module), settings, precision=used, ema_decay=ema_decay, device=torch.device("cpu"), skip_nonfinite=skip_nonfinite
    )


SETTINGS = StepSettings(seed=1, learning_rate=0.1, clip_norm=None, measures_norm=True, may_split=True)


def step(
    state: TrainState, *parts: tuple[torch.Tensor, torch.Tensor], label_smoothing: float = 0.0, **step_settings: float | bool | None
) -> Row:
    """One update over the given micro-batches, and what a report would say of it."""
    progress = Progress(micro_batch_size=1)
    update(state, Parts(*parts), progress, replace(SETTINGS, **step_settings), Step(state, objective_of(label_smoothing), state.model))
    return averages(progress)


def averages(progress: Progress) -> Row:
    row = progress.window.read_values().averages(progress.window.num_targets, objective_of())
    return {name: value for name, value in row.items() if name != "train/gradient_norm"}


def samples(count: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, 5, generator=generator, dtype=dtype), torch.randint(0, 3, (count,), generator=generator)


def gradients(state: TrainState) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in state.model.parameters()])


@pytest.mark.parametrize("sizes", [[7, 6], [1] * 13])
def test_micro_batches_add_up_to_one_batch(sizes: list[int]) -> None:
    inputs, targets = samples(13)
    whole, parts = state_of(network()), state_of(network())
    row = step(whole, (inputs, targets), label_smoothing=0.1)
    row_of_parts = step(parts, *zip(inputs.split(sizes), targets.split(sizes), strict=True), label_smoothing=0.1)
    difference = (gradients(whole) - gradients(parts)).norm() / gradients(whole).norm()
    assert difference <= 1e-12
    assert row_of_parts == pytest.approx(row, rel=1e-12)


def test_the_objective_is_the_mean_over_the_batch_of_what_is_minimised() -> None:
    inputs, targets = samples(8)
    module = network()
    expected = cross_entropy(module(inputs), targets, label_smoothing=0.2).item()
    row = step(state_of(module), (inputs, targets), label_smoothing=0.2)
    assert row["train/objective"] == pytest.approx(expected, rel=1e-12)


def test_the_gradient_is_clipped_by_its_norm_after_unscaling() -> None:
    inputs, targets = samples(8, torch.float32)
    free, clipped, scaled = (state_of(network(dtype=torch.float32)) for _ in range(3))
    scaled.scaler = precision.scaler("fp16", torch.device("cpu"))
    step(free, (inputs, targets))
    norm = gradients(free).norm()
    for state in (clipped, scaled):
        step(state, (inputs, targets), clip_norm=float(norm) / 2)
        assert gradients(state).norm() == pytest.approx(float(norm) / 2, rel=1e-4)
    assert torch.allclose(gradients(clipped), gradients(scaled), rtol=1e-6)


class Overflowing(nn.Module):
    """Gives infinite gradients where it is told to, as fp16 does when its scale is too large; BatchNorm sees the batch all the same."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.middle = nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Linear(5, 5)
        self.last, self.overflows = nn.Linear(5, 3), False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits = self.last(self.middle(self.norm(self.first(inputs))))
        return logits * torch.inf if self.overflows else logits


def refuse_changes(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> None:
    """The second step was skipped: nothing has changed, and the average has come nearer to the same weights and statistics."""
    for name, tensor in before.items():
        part = name.removeprefix("average/")
        expected = tensor if part == name else tensor.lerp(before[f"network/{part}"], 1 - 2 / 11) if tensor.is_floating_point() else None
        assert expected is None or torch.allclose(after[name], expected, rtol=1e-6, atol=0 if part == name else 1e-7), name
        assert part != name or torch.equal(after[name], tensor), name


@pytest.mark.parametrize("settings", [ADAMW, MUON], ids=["adamw", "muon"])
def test_a_step_that_overflows_changes_nothing_but_the_scale_and_is_counted(settings) -> None:
    module = Overflowing()
    state = state_of(module, settings=settings, used="fp16", ema_decay=0.9)
    step(state, samples(8, torch.float32))
    before = {name: tensor.clone() for name, tensor in state.tensors().items()}
    scale = state.scaler.get_scale()
    module.overflows = True
    row = step(state, samples(9, torch.float32))
    after = state.tensors()
    refuse_changes(before, after)
    assert (state.step, state.scaler.get_scale()) == (2, scale / 2)
    assert row == {"train/skipped_steps": 1}


def test_an_overflow_in_the_very_first_step_leaves_the_momentum_at_rest() -> None:
    inputs, targets = samples(8, torch.float32)
    first, second = Overflowing(), Overflowing()
    late, clean = (state_of(module, settings=MOMENTUM, used=used) for module, used in ((first, "fp16"), (second, "fp16")))
    first.overflows = True
    step(late, (inputs, targets))
    first.overflows = False
    clean.scaler.load_state_dict(late.scaler.state_dict())
    clean.step = 1
    for state in (late, clean):
        step(state, (inputs, targets))
    assert all(torch.equal(clean.tensors()[name], tensor) for name, tensor in late.tensors().items())


def test_averages_leave_out_the_steps_that_were_skipped() -> None:
    module = Overflowing()
    state, progress = state_of(module, used="fp16"), Progress(micro_batch_size=1)
    update(state, Parts(samples(8, torch.float32)), progress, SETTINGS, Step(state, objective_of(), state.model))
    alone = averages(progress)
    module.overflows = True
    update(state, Parts(samples(8, torch.float32)), progress, SETTINGS, Step(state, objective_of(), state.model))
    assert averages(progress) == alone | {"train/skipped_steps": 1}


@pytest.mark.parametrize("settings", [MOMENTUM, MUON], ids=["momentum", "muon"])
def test_without_a_scaler_a_step_that_is_not_finite_is_skipped_where_that_is_asked_for(settings) -> None:
    module = Overflowing()
    state = state_of(module, settings=settings, ema_decay=0.9, skip_nonfinite=True)
    step(state, samples(8, torch.float32))
    before = {name: tensor.clone() for name, tensor in state.tensors().items()}
    module.overflows = True
    assert step(state, samples(9, torch.float32)) == {"train/skipped_steps": 1}
    assert state.step == 2
    refuse_changes(before, state.tensors())
    module.overflows = False
    assert "train/skipped_steps" not in step(state, samples(8, torch.float32))
    assert not torch.equal(state.tensors()["network/last.weight"], before["network/last.weight"])


def test_skipping_where_nothing_is_to_be_skipped_changes_no_bit() -> None:
    one, other = (state_of(network(dtype=torch.float32), settings=MUON, skip_nonfinite=skip) for skip in (False, True))
    for state in (one, other):
        for _ in range(3):
            step(state, samples(8, torch.float32))
    assert same(one.tensors(), other.tensors())


def test_biases_and_norms_move_by_their_factor() -> None:
    before = dict(network().named_parameters())
    moved = {}
    for factor in (1.0, 0.25):
        module = network()
        step(state_of(module, settings=PLAIN.model_copy(update={"bias_lr_scale": factor})), samples(8))
        moved[factor] = {name: parameter.detach() - before[name].detach() for name, parameter in module.named_parameters()}
    for name, way in moved[1.0].items():
        expected = way * 0.25 if way.ndim < 2 else way
        assert torch.allclose(moved[0.25][name], expected, rtol=1e-9, atol=1e-12), name


def test_dropout_draws_by_step_and_micro_batch() -> None:
    drawn: list[torch.Tensor] = []

    class Recording(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(5, 3, dtype=torch.float64)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            drawn.append(torch.rand(4))
            return self.last(inputs)

    for _ in range(2):
        state = state_of(Recording())
        for _ in range(2):
            torch.rand(3)  # what others draw in between has no influence
            step(state, samples(2), samples(3))
    first, second = drawn[:4], drawn[4:]
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert len({tuple(draw.tolist()) for draw in first}) == 4
