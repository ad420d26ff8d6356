"""`optimizer.groups` and `optimizer.layer_decay`: which learning rate and weight decay each parameter gets."""

import re
from typing import Any

import pytest
from torch import nn

from pipeline.core.refusal import Refusal
from pipeline.train.engine import optimizers, parameter_groups
from pipeline.train.optimizer_params import GroupSettings, OptimizerSettings
from tests.train.engine.building import ADAMW, MUON, begin

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
    with pytest.raises(
        Refusal, match=r"optimizer\.groups\.1\.patterns: every parameter that matches is frozen or belongs to an earlier group"
    ):
        values(network(), settings(groups=(everything, HEAD)), "lr_scale")


def test_muon_orthogonalises_the_same_weights_in_any_groups() -> None:
    module = network()
    chosen = settings(MUON, groups=(HEAD, FIRST), layer_decay=0.5, normalize_weights=False)
    assert values(module, chosen, "hidden") == values(module, MUON, "hidden")
    assert values(module, chosen, "momentum") == values(module, MUON, "momentum")


def test_the_rate_falls_from_the_head_to_the_first_layer() -> None:
    rates = values(network(), settings(layer_decay=0.5, groups=(HEAD,)), "lr_scale")
    assert {name.partition(".")[0]: rate for name, rate in rates.items()} == {"8": 10.0, "4": 0.5, "2": 0.25, "0": 0.125}


def test_the_range_of_the_learning_rates_is_told() -> None:
    module, chosen = network(), settings(layer_decay=0.5, groups=(HEAD,))
    told = parameter_groups.summary(module, optimizers.build(module, chosen), 0.01)
    assert told == "learning rates from 0.0013 (0.0.weight) to 0.1 (8.bias)"


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
    depth = parameter_groups.depths(module := Bridged())
    assert [depth[id(parameter)] for name, parameter in module.named_parameters() if name.endswith("weight")] == [2, 2, 1]


def test_a_network_without_blocks_has_no_layer_decay() -> None:
    with pytest.raises(Refusal, match=r"optimizer\.layer_decay: this model has no blocks"):
        optimizers.build(nn.Linear(2, 2), settings(layer_decay=0.5))
