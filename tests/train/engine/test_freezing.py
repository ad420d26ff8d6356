"""Frozen parameters: unchanged bytes, no gradient, no optimizer state, and BatchNorm statistics that stay."""

import pytest
import torch
from torch import nn

from pipeline.core.refusal import Refusal
from pipeline.train.engine import parameter_groups
from tests.laws.test_resuming import CONVNET
from tests.train.engine.building import begin, run, same, steps

CHANGES = {**steps(4, 2), "model": CONVNET, "train.batch_size": 16, "train.micro_batch_size": 8, "train.freeze": ["0.*", "2.*"]}


def split(tensors: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return copies of the tensors of the frozen stages and of the others."""
    frozen = {name: tensor.clone() for name, tensor in tensors.items() if name.startswith(("0.", "2."))}
    return frozen, {name: tensor.clone() for name, tensor in tensors.items() if name not in frozen}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"train.precision": "fp16", "train.on_nonfinite": "skip"},
        {"train.activation_checkpointing": True},
        pytest.param({"train.compile": "default"}, marks=pytest.mark.slow),
    ],
    ids=lambda changes: ", ".join(map(str, changes)) or "plain",
)
def test_frozen_stages_keep_every_byte_through_validations_and_the_others_change(train_params, prepared, changes: dict) -> None:
    training = begin(train_params({**CHANGES, **changes}), prepared)
    before = split(training.state.model.network.state_dict())
    run(training)
    for model in (training.state.model, training.state.scored):
        after = split(model.network.state_dict())
        assert same(before[0], after[0]), "running statistics included"
        assert not any(torch.equal(after[1][name], tensor) for name, tensor in before[1].items())


def test_frozen_parameters_have_neither_gradient_nor_optimizer_state_nor_average(train_params, prepared) -> None:
    training = begin(train_params(CHANGES), prepared)
    run(training)
    kept = training.state.tensors()
    assert any(name.startswith("optimizer/8.") for name in kept)
    assert not any(name.startswith(("optimizer/0.", "optimizer/2.")) for name in kept)
    frozen = [parameter for parameter in training.state.model.parameters() if not parameter.requires_grad]
    assert len(frozen) == 12
    assert all(parameter.grad is None for parameter in frozen)
    assert training.state.ema
    averaged = {tensor.data_ptr() for tensor in training.state.ema.leading}
    assert not averaged & {parameter.data_ptr() for parameter in frozen}


@pytest.mark.parametrize("recomputing", [False, True])
def test_no_backward_is_computed_below_the_lowest_trained_layer(train_params, prepared, recomputing: bool) -> None:
    training = begin(train_params({**CHANGES, "train.activation_checkpointing": recomputing}), prepared)
    network = training.state.model.network
    differentiable: dict[str, bool] = {}
    calls: list[str] = []
    for name, module in network.named_children():
        module.register_forward_hook(lambda _module, _inputs, output, name=name: differentiable.update({name: output.requires_grad}))
    for name in ("0.0", "4.0"):
        network.get_submodule(name).register_forward_hook(lambda *_, name=name: calls.append(name))
    training.state.model(torch.zeros(4, 8, 8, 1, dtype=torch.uint8)).sum().backward()
    assert [name for name, needed in differentiable.items() if not needed] == ["0", "1", "2", "3"]
    assert calls == (["0.0", "4.0", "4.0"] if recomputing else ["0.0", "4.0"]), "a frozen block is not computed again"


def norms() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.BatchNorm1d(2, affine=False), nn.Linear(2, 2))


@pytest.mark.parametrize(("patterns", "kept"), [(["0.*", "1.weight"], []), (["1.weight", "1.bias"], ["1"]), (["[012].*"], ["1", "2"])])
def test_a_norm_keeps_its_statistics_if_all_of_it_is_frozen(patterns: list[str], kept: list[str]) -> None:
    network = norms()
    assert parameter_groups.freeze(network, patterns) == [network.get_submodule(name) for name in kept]


def test_a_norm_whose_scale_the_model_freezes_keeps_its_statistics_if_its_bias_is_frozen() -> None:
    network = norms()
    network.get_submodule("1").weight.requires_grad_(False)
    assert parameter_groups.freeze(network, []) == []
    assert parameter_groups.freeze(network, ["0.*"]) == []
    assert parameter_groups.freeze(network, ["1.bias"]) == [network.get_submodule("1")]


def test_a_pattern_that_matches_nothing_is_refused_with_the_nearest_names(train_params, prepared) -> None:
    with pytest.raises(Refusal, match=r"train\.freeze: stage0\.\* matches no parameter: the nearest are 0\.\*"):
        begin(train_params({**CHANGES, "train.freeze": ["0.*", "stage0.*"]}), prepared)


def test_nothing_left_to_train_is_refused(train_params, prepared) -> None:
    with pytest.raises(Refusal, match=r"train\.freeze: freezes every parameter, so nothing is trained: let the patterns leave out"):
        begin(train_params({**CHANGES, "train.freeze": ["*"]}), prepared)
