"""The size of a model before its first step, compared with what a training really takes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from pipeline.inference import networks
from pipeline.models import recurrent
from pipeline.runs import model_size
from pipeline.runs.model_size import ModelSize, si
from tests import texts
from tests.train.engine import building

CONVNET = {"name": "convnet", "weights": None, "width": 4, "dropout": 0.2}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"name": "adamw", "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8},
    "sgd": {"name": "sgd", "momentum": 0.9, "nesterov": True},
    "plain sgd": {"name": "sgd", "momentum": 0.0, "nesterov": False},
    "muon": {
        "name": "muon",
        "momentum": 0.9,
        "sgd_momentum": 0.9,
        "nesterov": True,
        "ns_steps": 3,
        "normalize_weights": False,
        "outer_lr_scale": 1.0,
    },
}
COMMON = {"learning_rate": 1e-3, "weight_decay": 0.0, "bias_lr_scale": 1.0, "layer_decay": None, "groups": []}


def size_of(training, micro_batch_size: int = 16) -> ModelSize:
    return ModelSize.of(training.state, training.params, training.prepared, micro_batch_size=micro_batch_size)


def test_parameters_and_flops_of_an_mlp_are_those_that_one_counts_by_hand(train_params, prepared) -> None:
    training = building.begin(train_params({}), prepared)
    layers = [module for module in training.state.model.modules() if isinstance(module, nn.Linear)]
    found = size_of(training)
    assert found.num_parameters == found.num_trained == sum(parameter.numel() for parameter in training.state.model.parameters())
    assert found.forward
    assert found.forward.flops == 16 * sum(2 * layer.in_features * layer.out_features for layer in layers)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizer_state_is_that_of_the_first_step(train_params, prepared, name: str) -> None:
    params = train_params({"optimizer": OPTIMIZERS[name] | COMMON, "train.steps": 1, "train.epochs": None})
    before = size_of(building.begin(params, prepared))
    training = building.begin(params, prepared)
    building.run(training)
    kept = [value for state in training.state.optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    existing_before = sum(
        value.nbytes for state in building.begin(params, prepared).state.optimizer.state.values() for value in state.values()
    )
    assert before.gradient_bytes == sum(parameter.nbytes for parameter in training.state.parameters)
    assert before.optimizer_bytes + existing_before == sum(tensor.nbytes for tensor in kept if tensor.ndim)
    assert size_of(training).optimizer_bytes == 0, "a restored state is in use already"


@pytest.mark.parametrize(
    ("data", "model", "tolerance"),
    [
        ("images", {}, 0.0),
        ("images", {"model": CONVNET, "train.activation_checkpointing": True}, 0.02),
        ("texts", {"model": texts.TRANSFORMER}, 0.3),
        ("corpus", {"model": texts.TRANSFORMER_LANGUAGE_MODEL}, 0.3),
    ],
)
def test_the_activations_counted_on_the_meta_device_are_those_that_a_forward_pass_keeps(
    train_params, prepared, data: str, model: dict[str, Any], tolerance: float
) -> None:
    """For attention, the kernels of the CPU keep other tensors than those counted. For an LSTM they keep some times as much."""
    found = prepared if data == "images" else getattr(texts, data)()
    training = building.begin(train_params({**({} if data == "images" else texts.UNAUGMENTED), **model}), found)
    own = {tensor.untyped_storage().data_ptr() for tensor in (*training.state.model.parameters(), *training.state.model.buffers())}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    inputs = torch.from_numpy(found.train.inputs[:16].copy())
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = training.state.model(inputs)
        loss = torch.nn.functional.cross_entropy(outputs.flatten(0, -2), torch.zeros(outputs.flatten(0, -2).shape[0], dtype=torch.int64))
    really = sum(size for address, size in kept.items() if address not in own)
    del loss
    counted = size_of(training).forward
    assert counted
    assert counted.activation_bytes == pytest.approx(really, rel=tolerance, abs=1024)


def test_the_flops_of_recurrent_cells_are_counted(train_params) -> None:
    found = texts.texts()
    for cell in recurrent.CELLS:
        params, spec = train_params({**texts.UNAUGMENTED, "model": texts.LSTM | {"cell": cell}}), found.spec
        weights = sum(tensor.numel() for name, tensor in params.model.build(spec).named_parameters() if ".weight_" in name)
        forward = model_size.count_forward(params, spec, "fp32", 16, channels_last=False, longest=None)
        assert forward
        assert forward.flops >= 2 * 16 * texts.LENGTH * weights > 0


def test_texts_count_with_the_length_to_which_the_longest_is_cut(train_params) -> None:
    found = texts.texts()
    training = building.begin(train_params({**texts.UNAUGMENTED, "model": texts.TRANSFORMER}), found)
    full = size_of(training).forward
    short = replace(found.train, lengths=np.minimum(found.train.lengths, texts.LENGTH // 2))
    training.prepared = replace(found, splits={**found.splits, "train": short})
    half = size_of(training).forward
    assert full
    assert half
    assert 0.4 * full.flops < half.flops <= 0.5 * full.flops
    assert half.activation_bytes < 0.6 * full.activation_bytes


def test_frozen_parameters_have_no_gradient_and_no_optimizer_state(train_params, prepared) -> None:
    whole = size_of(building.begin(train_params({}), prepared))
    frozen = size_of(building.begin(train_params({"train.freeze": ["*0*"]}), prepared))
    assert frozen.num_parameters == whole.num_parameters
    assert frozen.num_trained < whole.num_trained
    assert frozen.gradient_bytes == 4 * frozen.num_trained
    assert frozen.optimizer_bytes == 8 * frozen.num_trained
    assert f"({frozen.num_trained:,} trained)" in frozen.lines(torch.device("cpu"))[0]
    assert "trained" not in whole.lines(torch.device("cpu"))[0]


def test_counting_changes_no_weight_and_no_random_state(train_params, prepared) -> None:
    training = building.begin(train_params({"model": CONVNET}), prepared)
    weights = {name: tensor.clone() for name, tensor in building.weights(training.state).items()}
    random = torch.get_rng_state()
    size_of(training)
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
    found = size_of(training)
    assert found.forward is None
    first, second = found.lines(torch.device("cpu"))
    assert "FLOPs" not in first
    assert second.endswith("without activations and temporary buffers")


def test_with_autocast_the_16_bit_copies_of_the_weights_count_too(train_params, prepared) -> None:
    params, spec = train_params({}), prepared.spec
    bf16_true, fp32, mixed = (
        model_size.count_forward(params, spec, name, 16, channels_last=False, longest=None) for name in ("bf16-true", "fp32", "bf16")
    )
    assert bf16_true
    assert fp32
    assert mixed
    assert bf16_true.activation_bytes < fp32.activation_bytes
    assert mixed.activation_bytes > bf16_true.activation_bytes
    assert bf16_true.flops == fp32.flops == mixed.flops


def test_the_lines_name_what_is_counted() -> None:
    found = ModelSize(2_500_000, 2_500_000, 64, model_size.Forward(64 * 1_234_000_000, 3_000_000_000), 500_000_000, 10_000_000, 20_000_000)
    assert found.lines(torch.device("cuda", 0)) == [
        "2,500,000 parameters, 1.23 GFLOPs for a sample (forward)",
        "memory expected: 3.53 GB = 500 MB in use (data, weights) + 10 MB for gradients + 20 MB for optimizer state + 3 GB for activations of 64 samples, without temporary buffers and the CUDA context",
    ]


def test_numbers_have_three_digits_and_a_prefix() -> None:
    assert [si(value) for value in (0, 999, 999.6, 12_345, 5e12, 7.2e15)] == ["0 ", "999 ", "1 k", "12.3 k", "5 T", "7,200 T"]
