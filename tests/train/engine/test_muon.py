"""Muon: its updates are those of torch's for matrices and of SGD for all else, and one that may change nothing changes nothing."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim._muon import _zeropower_via_newtonschulz

from pipeline.train.engine import muon, optimizers
from pipeline.train.optimizer_params import MuonSettings
from tests.train.engine.building import MUON

SETTINGS = MUON.model_copy(update={"normalize_weights": False})
HIDDEN = {"2.weight", "3.weight", "6.weight"}


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.Conv2d(6, 6, 3, padding=1),
        nn.Conv2d(6, 6, 3, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 9),
        nn.Linear(9, 3),
    ).to(dtype)


def gradients(module: nn.Module, number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    for parameter in module.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter)


def updated(module: nn.Module, settings: MuonSettings = SETTINGS, *, steps: int = 3) -> torch.optim.Optimizer:
    optimizer = optimizers.build(module, settings)
    for group in optimizer.param_groups:
        group["lr"] = settings.learning_rate * group["lr_scale"]
    for number in range(steps):
        gradients(module, number)
        optimizer.step()
    return optimizer


def hidden(optimizer: torch.optim.Optimizer, module: nn.Module) -> set[str]:
    turned = {id(parameter) for group in optimizer.param_groups if group["hidden"] for parameter in group["params"]}
    return {name for name, parameter in module.named_parameters() if id(parameter) in turned}


@pytest.mark.parametrize("frozen", [False, True])
def test_weights_between_the_first_and_the_last_layer_are_turned_also_if_the_first_is_frozen(frozen: bool) -> None:
    module = network()
    module[0].requires_grad_(not frozen)
    assert hidden(optimizers.build(module, SETTINGS), module) == HIDDEN


def of_torch(batch: torch.Tensor, ns_steps: int) -> torch.Tensor:
    return torch.stack(
        [_zeropower_via_newtonschulz(matrix, muon.NS_COEFFICIENTS, ns_steps, muon.SMALLEST_NORM) for matrix in batch]
    ).float()


@pytest.mark.parametrize(("shape", "ns_dtype"), [((2, 16, 40), torch.bfloat16), ((1, 40, 16), torch.float32)])
def test_the_iteration_is_that_of_torch_but_for_its_rounding(monkeypatch: pytest.MonkeyPatch, shape, ns_dtype: torch.dtype) -> None:
    monkeypatch.setattr(muon, "ns_dtype", lambda _: ns_dtype)
    batch = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found, expected = muon.orthogonalized(batch, 5), of_torch(batch, 5)
    assert found.dtype == torch.float32
    assert (found - expected).norm() / expected.norm() < 0.03


@pytest.fixture(params=[False, True], ids=["sizes of a CPU", "padded as on a GPU"])
def padded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a batch hold matrices of equal size, or on this CPU matrices of several sizes that are padded."""
    if request.param:
        size_of = muon.padded_size
        monkeypatch.setattr(muon, "padded_size", lambda shape, _: size_of(shape, torch.device("cuda")))


def test_tall_and_wide_matrices_stand_in_one_padded_batch_and_return_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muon, "padded_size", lambda *_: (16, 64))
    tensors = [torch.randn(shape) for shape in ((40, 5), (5, 40), (9, 2, 4))]
    packing = muon.Packing([tensor.shape for tensor in tensors], torch.device("cpu"))
    batch = packing.matrices(tensors)
    assert torch.equal(batch[0, :5, :40], tensors[0].mT)
    assert batch.count_nonzero() == sum(tensor.numel() for tensor in tensors)
    restored = [torch.zeros_like(tensor) for tensor in tensors]
    packing.write(restored, batch)
    assert all(torch.equal(one, other) for one, other in zip(restored, tensors, strict=True))


@pytest.mark.usefixtures("padded")
@pytest.mark.parametrize("nesterov", [True, False])
def test_hidden_weights_move_as_with_the_muon_of_torch(monkeypatch: pytest.MonkeyPatch, nesterov: bool) -> None:
    monkeypatch.setattr(muon, "orthogonalized", of_torch)
    ours, theirs = network(), network()
    updated(ours, SETTINGS.model_copy(update={"nesterov": nesterov}))
    views = {name: nn.Parameter(parameter.detach().flatten(1)) for name, parameter in theirs.named_parameters() if name in HIDDEN}
    reference = torch.optim.Muon(views.values(), lr=0.1, weight_decay=0.05, momentum=0.6, nesterov=nesterov, ns_steps=5)
    for number in range(3):
        gradients(theirs, number)
        for name, view in views.items():
            view.grad = theirs.get_parameter(name).grad.flatten(1)
        reference.step()
    for name, view in views.items():
        assert torch.allclose(ours.get_parameter(name).flatten(1), view, rtol=1e-5, atol=1e-6), name


def test_all_other_parameters_move_as_with_sgd() -> None:
    ours, theirs = network(), network()
    updated(ours)
    named = {name: parameter for name, parameter in theirs.named_parameters() if name not in HIDDEN}
    groups = [
        {"params": [parameter for parameter in named.values() if parameter.ndim >= 2], "lr": 0.3, "weight_decay": 0.05},
        {"params": [parameter for parameter in named.values() if parameter.ndim < 2], "lr": 0.2, "weight_decay": 0.0},
    ]
    reference = torch.optim.SGD(groups, momentum=0.85, nesterov=True)
    for number in range(3):
        gradients(theirs, number)
        reference.step()
    for name, parameter in named.items():
        assert torch.allclose(ours.get_parameter(name), parameter, rtol=1e-5, atol=1e-7), name


@pytest.mark.usefixtures("padded")
def test_normalised_weights_have_the_norm_of_the_root_of_their_outputs_before_they_move() -> None:
    module = network()
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    free = network()
    updated(free, SETTINGS.model_copy(update={"weight_decay": 0.0}), steps=1)
    updated(module, SETTINGS.model_copy(update={"normalize_weights": True}), steps=1)
    for name in HIDDEN:
        way = free.get_parameter(name) - before[name]
        at = before[name] * len(before[name]) ** 0.5 / before[name].norm()
        assert torch.allclose(module.get_parameter(name), at + way, rtol=1e-5, atol=1e-6), name


class Conv1D(nn.Linear):
    """A linear layer whose weight is (inputs, outputs), as that of transformers."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.weight = nn.Parameter(self.weight.detach().mT.contiguous())


@pytest.mark.usefixtures("padded")
@pytest.mark.parametrize("normalize_weights", [False, True])
def test_a_transposed_weight_moves_as_the_same_weight_of_a_linear_layer(normalize_weights: bool) -> None:
    plain, other = (nn.Sequential(nn.Linear(3, 3), kind(3, 12), kind(12, 5), nn.Linear(5, 5)) for kind in (nn.Linear, Conv1D))
    for one, another in zip(plain, other, strict=True):
        another.weight.data.copy_(one.weight.detach().mT if isinstance(another, Conv1D) else one.weight.detach())
    settings = SETTINGS.model_copy(update={"normalize_weights": normalize_weights})
    for module in (plain, other):
        optimizer = optimizers.build(module, settings)
        for number, layer in enumerate(module):
            gradient = torch.randn(plain[number].weight.shape, generator=torch.Generator().manual_seed(number))
            layer.weight.grad = gradient.mT.contiguous() if isinstance(layer, Conv1D) else gradient
        optimizer.step()
    for number in (1, 2):
        assert torch.allclose(other[number].weight.mT, plain[number].weight, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("padded")
def test_a_weight_of_zeros_stays_finite() -> None:
    module = network()
    nn.init.zeros_(module[2].weight)
    updated(module, SETTINGS.model_copy(update={"normalize_weights": True}))
    assert all(parameter.isfinite().all() for parameter in module.parameters())


@pytest.mark.parametrize("spoiled", [0.0, 1.0])
def test_found_inf_leaves_all_as_it_is_and_its_absence_changes_no_bit(spoiled: float) -> None:
    module, other = network(), network()
    optimizer, reference = updated(module), updated(other)
    optimizer.found_inf = torch.tensor(spoiled)
    for each, by in ((module, optimizer), (other, reference)):
        gradients(each, 9)
        if spoiled:
            each[2].weight.grad.fill_(torch.nan)
        if not spoiled or by is optimizer:
            by.step()
    for one, another in zip(module.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, another)
        assert torch.equal(optimizer.state[one]["momentum_buffer"], reference.state[another]["momentum_buffer"])


@pytest.mark.parametrize(
    ("device", "capability", "expected"),
    [("cuda", (7, 5), torch.float32), ("cuda", (8, 0), torch.bfloat16), ("cpu", (9, 0), torch.float32)],
)
def test_the_iteration_is_in_bf16_on_gpus_that_support_it(
    monkeypatch: pytest.MonkeyPatch, device: str, capability: tuple[int, int], expected: torch.dtype
) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: capability)
    batch = SimpleNamespace(device=torch.device(device), dtype=torch.float32)
    assert muon.ns_dtype(batch) == expected  # type: ignore[arg-type]
