"""`optimizer.groups` and `optimizer.layer_decay`: which learning rate and weight decay each parameter gets; `train.freeze`: unchanged bytes, no gradient, no optimizer state."""

import re
from typing import Any

import pytest
import torch
from torch import nn

from pipeline.core.refusal import Refusal
from pipeline.train.engine import optimizers
from pipeline.train.optimizer_params import GroupSettings, OptimizerSettings
from tests.laws.test_resuming import CONVNET
from tests.train.engine.building import ADAMW, MUON, begin, run, same, steps

HEAD = GroupSettings(patterns=("8.*",), lr_scale=10.0, weight_decay=0.3)
FIRST = GroupSettings(patterns=("0.*", "2.0.weight"), lr_scale=0.5, weight_decay=None)


def network() -> nn.Module:
    """Return a network of three blocks and a head: 0, 2 and 4, and 8."""
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(3)]
    return nn.Sequential(blocks[0], nn.ReLU(), blocks[1], nn.ReLU(), blocks[2], nn.ReLU(), nn.ReLU(), nn.ReLU(), nn.Linear(4, 2))


def settings(base: OptimizerSettings = ADAMW, **changes: Any) -> Any:
    return base.model_copy(update=changes)


def values(module: nn.Module, settings: OptimizerSettings, key: str) -> dict[str, Any]:
    """Return a setting of the parameter groups by the name of the parameter."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return {names[id(parameter)]: group[key] for group in optimizers.build(module, settings).param_groups for parameter in group["params"]}


@pytest.mark.parametrize("base", [ADAMW, MUON], ids=lambda base: base.name)
def test_a_group_scales_the_rate_and_replaces_the_decay_of_what_decays(base: Any) -> None:
    module = network()
    plain, chosen = settings(base, normalize_weights=False), settings(base, normalize_weights=False, groups=(HEAD, FIRST))
    rates, before = values(module, chosen, "lr_scale"), values(module, plain, "lr_scale")
    scales = {name: rates[name] / before[name] for name in rates}
    halved = {"0.0.weight", "0.0.bias", "0.1.weight", "0.1.bias", "2.0.weight"}
    assert scales == {name: 10.0 if name.startswith("8.") else 0.5 if name in halved else 1.0 for name in rates}
    decays = values(module, chosen, "weight_decay")
    assert decays == values(module, plain, "weight_decay") | {"8.weight": 0.3}, "the bias of the head still has none"


def test_the_first_group_that_matches_wins() -> None:
    everything = GroupSettings(patterns=("*",), lr_scale=0.1, weight_decay=None)
    rates = values(network(), settings(groups=(HEAD, everything)), "lr_scale")
    assert rates == {name: 10.0 if name.startswith("8.") else 0.1 for name in rates}
    with pytest.raises(Refusal, match=r"optimizer\.groups\.1\.patterns: every parameter .*is frozen or belongs to an earlier group"):
        values(network(), settings(groups=(everything, HEAD)), "lr_scale")


def test_muon_orthogonalises_the_same_weights_in_any_groups() -> None:
    module = network()
    chosen = settings(MUON, groups=(HEAD, FIRST), layer_decay=0.5, normalize_weights=False)
    assert values(module, chosen, "hidden") == values(module, MUON, "hidden")
    assert values(module, chosen, "momentum") == values(module, MUON, "momentum")


def test_the_rate_falls_from_the_head_to_the_first_layer() -> None:
    rates = values(network(), settings(layer_decay=0.5, groups=(HEAD,)), "lr_scale")
    assert {name.partition(".")[0]: rate for name, rate in rates.items()} == {"8": 10.0, "4": 0.5, "2": 0.25, "0": 0.125}


def test_a_training_prints_the_range_of_the_learning_rates_only_if_they_differ(train_params, prepared, capsys) -> None:
    begin(train_params({"optimizer.layer_decay": None}), prepared)
    assert "learning rates" not in capsys.readouterr().out
    begin(train_params({"optimizer.layer_decay": 0.5, "optimizer.learning_rate": 0.01}), prepared)
    assert re.search(r"^train: learning rates from 0\.00\d+ \(\S+\.weight\) to 0\.01 \(\S+\)$", capsys.readouterr().out, re.MULTILINE)


class Bridged(nn.Module):
    """A layer between two blocks, registered between them."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
        self.between = nn.Linear(2, 2)
        self.up = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))


def test_a_layer_between_two_blocks_has_the_depth_of_the_block_before_it() -> None:
    depth = optimizers.depths(module := Bridged())
    assert [depth[id(parameter)] for name, parameter in module.named_parameters() if name.endswith("weight")] == [2, 2, 1]


def test_a_network_without_blocks_has_no_layer_decay() -> None:
    with pytest.raises(Refusal, match=r"optimizer\.layer_decay: this model has no blocks"):
        optimizers.build(nn.Linear(2, 2), settings(layer_decay=0.5))


FROZEN = {**steps(4, 2), "model": CONVNET, "train.batch_size": 16, "train.micro_batch_size": 8, "train.freeze": ["0.*", "2.*"]}


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
    training = begin(train_params({**FROZEN, **changes}), prepared)
    before = split(training.state.model.network.state_dict())
    run(training)
    for model in (training.state.model, training.state.scored):
        after = split(model.network.state_dict())
        assert same(before[0], after[0]), "running statistics included"
        assert not any(torch.equal(after[1][name], tensor) for name, tensor in before[1].items())


def test_frozen_parameters_have_neither_gradient_nor_optimizer_state_nor_average(train_params, prepared) -> None:
    training = begin(train_params(FROZEN), prepared)
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
    training = begin(train_params({**FROZEN, "train.activation_checkpointing": recomputing}), prepared)
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
    assert optimizers.freeze(network, patterns) == [network.get_submodule(name) for name in kept]


def test_a_norm_whose_scale_the_model_freezes_keeps_its_statistics_if_its_bias_is_frozen() -> None:
    network = norms()
    network.get_submodule("1").weight.requires_grad_(False)
    assert optimizers.freeze(network, []) == []
    assert optimizers.freeze(network, ["0.*"]) == []
    assert optimizers.freeze(network, ["1.bias"]) == [network.get_submodule("1")]


def test_a_pattern_that_matches_nothing_is_refused_with_the_nearest_names(train_params, prepared) -> None:
    with pytest.raises(Refusal, match=r"train\.freeze: stage0\.\* matches no parameter: the nearest are 0\.\*"):
        begin(train_params({**FROZEN, "train.freeze": ["0.*", "stage0.*"]}), prepared)


def test_nothing_left_to_train_is_refused(train_params, prepared) -> None:
    with pytest.raises(Refusal, match=r"train\.freeze: freezes every parameter, so nothing is trained: let the patterns leave out"):
        begin(train_params({**FROZEN, "train.freeze": ["*"]}), prepared)
