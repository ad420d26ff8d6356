"""The size of a model before its first step."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from pipeline.inference import networks
from pipeline.models import recurrent
from pipeline.runs.terminal import count_forward, described_size, si
from tests import texts
from tests.train.engine import building

CONVNET = {"name": "convnet", "weights": None, "width": 4, "dropout": 0.2}


def test_parameters_and_flops_of_an_mlp_are_those_that_one_counts_by_hand(train_params, prepared) -> None:
    training = building.begin(train_params({}), prepared)
    layers = [module for module in training.state.model.modules() if isinstance(module, nn.Linear)]
    found = count_forward(training.params, prepared.spec)
    assert found
    assert found.num_weights == sum(parameter.numel() for parameter in training.state.model.parameters())
    assert found.flops == sum(2 * layer.in_features * layer.out_features for layer in layers)


def test_the_flops_of_recurrent_cells_are_counted(train_params) -> None:
    spec = texts.texts().spec
    for cell in recurrent.CELLS:
        params = train_params({**texts.UNAUGMENTED, "model": texts.LSTM | {"cell": cell}})
        weights = sum(tensor.numel() for name, tensor in params.model.build(spec).named_parameters() if ".weight_" in name)
        forward = count_forward(params, spec)
        assert forward
        assert forward.flops >= 2 * texts.LENGTH * weights > 0


def test_texts_count_with_the_length_to_which_the_longest_is_cut(train_params) -> None:
    found = texts.texts()
    training = building.begin(train_params({**texts.UNAUGMENTED, "model": texts.TRANSFORMER}), found)
    full, half = (count_forward(training.params, found.spec, longest) for longest in (None, texts.LENGTH // 2))
    assert full
    assert half
    assert 0.4 * full.flops < half.flops <= 0.5 * full.flops
    short = replace(found.train, lengths=np.minimum(found.train.lengths, texts.LENGTH // 2))
    training.prepared = replace(found, splits={**found.splits, "train": short})
    assert f", {si(half.flops)}FLOPs for a sample (forward)" in described_size(training)


def test_frozen_parameters_are_not_among_the_trained(train_params, prepared) -> None:
    assert "trained" not in described_size(building.begin(train_params({}), prepared))
    frozen = building.begin(train_params({"train.freeze": ["*0*"]}), prepared)
    num_trained = sum(parameter.numel() for parameter in frozen.state.parameters if parameter.requires_grad)
    assert f" parameters ({num_trained:,} trained), " in described_size(frozen)


def test_counting_changes_no_weight_and_no_random_state(train_params, prepared) -> None:
    training = building.begin(train_params({"model": CONVNET}), prepared)
    weights = {name: tensor.clone() for name, tensor in building.weights(training.state).items()}
    random = torch.get_rng_state()
    described_size(training)
    assert torch.equal(torch.get_rng_state(), random)
    assert building.same(building.weights(training.state), weights)
    assert training.state.model.training


@pytest.mark.parametrize("failing", ["build", "forward"])
def test_a_model_that_cannot_run_on_the_meta_device_is_described_without_flops(train_params, prepared, monkeypatch, failing: str) -> None:
    training = building.begin(train_params({}), prepared)
    if failing == "build":
        monkeypatch.setattr(networks, "build_on_meta", lambda *_: None)
    else:

        def fail(*_: object) -> None:
            raise NotImplementedError("Could not run 'aten::_local_scalar_dense' with arguments from the 'Meta' backend")

        monkeypatch.setattr("pipeline.inference.networks.Model.forward", fail)
    assert described_size(training) == f"{sum(each.numel() for each in training.state.parameters):,} parameters"


def test_numbers_have_three_digits_and_a_prefix() -> None:
    assert [si(value) for value in (0, 999, 999.6, 12_345, 5e12, 7.2e15)] == ["0 ", "999 ", "1 k", "12.3 k", "5 T", "7,200 T"]
