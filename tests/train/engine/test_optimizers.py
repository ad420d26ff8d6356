"""Optimizers: which parameters decay, and that the fused updates are those of the plain formulas."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils import weight_norm as old_weight_norm
from torchvision import models

from pipeline.core.params import load
from pipeline.core.yaml_document import Document
from pipeline.tools.params.editing import edited
from pipeline.train.engine import optimizers
from pipeline.train.optimizer_params import OptimizerSettings
from pipeline.train.params import TrainParams
from tests.imports import TOP
from tests.models import text_models
from tests.specs import image_spec
from tests.train.engine.building import ADAMW, MUON, SGD

SPEC = image_spec(shape=(32, 32, 3), classes=tuple("abcdefghij"), mean=(0.5,) * 3, std=(0.25,) * 3)
ADAM = ADAMW.model_copy(update={"name": "adam"})


RECOMMENDED = {
    "sgd": {"learning_rate": 0.1, "weight_decay": 5e-4, "momentum": 0.9, "nesterov": True},
    "adam": {"learning_rate": 1e-3, "weight_decay": 0.0, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8},
    "adamw": {"learning_rate": 1e-3, "weight_decay": 0.01, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8},
    "muon": {
        "learning_rate": 0.02,
        "weight_decay": 0.01,
        "bias_lr_scale": 5.0,
        "outer_lr_scale": 5.0,
        "momentum": 0.95,
        "sgd_momentum": 0.9,
        "nesterov": True,
        "ns_steps": 5,
        "normalize_weights": False,
    },
}


@pytest.mark.parametrize("name", RECOMMENDED)
def test_set_writes_the_recommended_values_of_an_optimizer(name: str) -> None:
    text = edited((TOP / "presets/digits.yaml").read_text(encoding="utf-8"), [f"optimizer={name}"])
    common = {"name": name, "bias_lr_scale": 1.0, "layer_decay": None, "groups": []}
    assert Document.of(text, Path("params.yaml")).data["optimizer"] == common | RECOMMENDED[name]


def network() -> nn.Module:
    torch.manual_seed(0)
    # the convolution has no bias: before BatchNorm, its gradient would be rounding noise, which Adam makes a step of
    return nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.BatchNorm2d(2), nn.Flatten(), nn.LayerNorm(8), nn.Linear(8, 3)).double()


def test_only_weights_of_linear_and_convolutional_layers_decay_or_are_orthogonalised() -> None:
    first, last, others = "conv_proj.weight", "heads.head.weight", ("class_token", "encoder.pos_embedding")
    with torch.device("meta"):
        module = models.vit_b_32()
    named = dict(module.named_parameters())
    matrices = {name for name, parameter in named.items() if parameter.ndim >= 2 and not name.endswith(others)}
    assert len(matrices) < sum(parameter.ndim >= 2 for parameter in named.values())
    assert chosen(module, ADAMW, lambda group: group["weight_decay"] > 0) == matrices
    assert chosen(module, MUON, lambda group: group["weight_decay"] > 0) == matrices
    assert chosen(module, MUON, lambda group: group["hidden"]) == matrices - {first, last}
    assert chosen(module, MUON, lambda group: group["lr_scale"] == MUON.outer_lr_scale) == {first, last}


def chosen(module: nn.Module, settings: OptimizerSettings, wanted: Callable[[Mapping[str, Any]], bool]) -> set[str]:
    """The names of the parameters in the groups that are `wanted`."""
    groups = optimizers.build(module, settings).param_groups
    found = {id(parameter) for group in groups if wanted(group) for parameter in group["params"]}
    return {name for name, parameter in module.named_parameters() if id(parameter) in found}


class Language(nn.Module):
    """An embedding that its last layer shares, and in between weights of every kind that has no `weight`, or one that is no matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4, 4))
        self.tokens = nn.Embedding(6, 4)
        self.mixing = nn.MultiheadAttention(4, 2, kdim=3, vdim=3, add_bias_kv=True)
        self.memory = nn.LSTM(4, 4)
        self.norm = nn.LayerNorm([2, 4])
        self.logits = nn.Linear(4, 6)
        self.logits.weight = self.tokens.weight


def test_an_embedding_is_the_first_layer_and_a_weight_that_it_shares_is_no_matrix() -> None:
    attention = {"mixing.out_proj.weight", *(f"mixing.{name}_proj_weight" for name in "qkv")}
    matrices = attention | {"memory.weight_ih_l0", "memory.weight_hh_l0"}
    assert chosen(Language(), ADAMW, lambda group: group["weight_decay"] > 0) == matrices
    assert chosen(Language(), MUON, lambda group: group["hidden"]) == matrices


class Scaled(nn.Linear):
    """A linear layer with two parameters that are named after its weight and are no matrices."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.weight_scale = nn.Parameter(torch.ones(4))
        self.weight_temperature = nn.Parameter(torch.ones(()))


class Conv1D(nn.Module):
    """A linear layer like that of transformers' GPT-2: its weight is (inputs, outputs)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(inputs, outputs)), nn.Parameter(torch.zeros(outputs))


class ImageNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))


class LayerScale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 1, 1))


PARAMETRIZED = {
    "weight_norm": (lambda: parametrizations.weight_norm(nn.Linear(4, 4)), {"parametrizations.weight.original1"}),
    "spectral_norm": (lambda: parametrizations.spectral_norm(nn.Conv2d(4, 4, 1)), {"parametrizations.weight.original"}),
    "old weight_norm": (lambda: old_weight_norm(nn.Linear(4, 4)), {"weight_v"}),
    "scaled": (Scaled, {"weight"}),
    "cell": (lambda: nn.LSTMCell(4, 4), {"weight_ih", "weight_hh"}),
    "another library": (lambda: Conv1D(4, 4), {"weight"}),
    "norm": (ImageNorm, set()),
    "scale": (LayerScale, set()),
    "bilinear": (lambda: nn.Bilinear(4, 4, 4), {"weight"}),
}
"""A layer, and the names of its matrices."""


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize(("layer", "matrices"), PARAMETRIZED.values(), ids=PARAMETRIZED)
def test_of_a_layer_the_matrices_alone_decay_however_they_are_parametrized(layer: Callable[[], nn.Module], matrices: set[str]) -> None:
    module = nn.Sequential(nn.Linear(4, 4), layer(), nn.Linear(4, 4))
    hidden = {f"1.{name}" for name in matrices}
    assert chosen(module, ADAMW, lambda group: group["weight_decay"] > 0) == hidden | {"0.weight", "2.weight"}
    assert chosen(module, MUON, lambda group: group["hidden"]) == hidden


@pytest.mark.parametrize(
    "name", ["cifar10-cnn", "cifar10-resnet", "cifar10-speedrun", "image-folder", "trec-lstm", "trec-ngrams", "code-transformer"]
)
def test_in_the_presets_the_matrices_are_what_has_two_dimensions_or_more_and_embeds_no_token(name: str) -> None:
    params = load(Document.read(TOP / f"presets/{name}.yaml"), TrainParams)
    reads_text = params.model.name in ("ngrams", "recurrent", "transformer")
    module = params.model.build(text_models.spec_for(params.model.model_dump()) if reads_text else SPEC)
    tables = {id(layer.weight) for layer in module.modules() if isinstance(layer, nn.Embedding)}
    named = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad and id(parameter) not in tables}
    matrices = {name for name, parameter in named.items() if parameter.ndim >= 2}
    settings = params.optimizer.model_copy(update={"weight_decay": 0.1})
    assert chosen(module, settings, lambda group: group["weight_decay"] > 0) == matrices


@pytest.mark.parametrize(
    ("settings", "reference"),
    [
        (SGD, lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True, fused=False, foreach=False)),
        (ADAM, lambda groups: torch.optim.Adam(groups, lr=0.1, betas=(0.9, 0.99), fused=False, foreach=False)),
        (ADAMW, lambda groups: torch.optim.AdamW(groups, lr=0.1, betas=(0.9, 0.99), fused=False, foreach=False)),
    ],
    ids=["sgd", "adam", "adamw"],
)
def test_fused_updates_follow_the_plain_formulas(settings, reference) -> None:
    ours, plain = network(), network()
    first = optimizers.build(ours, settings)
    weights = [p for p in plain.parameters() if p.ndim >= 2]
    others = [p for p in plain.parameters() if p.ndim < 2]
    second = reference([{"params": weights, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}])
    for number in range(4):
        for module, optimizer in ((ours, first), (plain, second)):
            optimizer.zero_grad()
            inputs = torch.randn(6, 1, 4, 4, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
            module(inputs).square().mean().backward()
            optimizer.step()
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)
