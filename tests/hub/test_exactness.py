"""Models of timm and transformers keep what every model promises: exact resuming, equal bytes from any number of processes, shared weights, matrices that decay."""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchvision import models as of_torchvision

from pipeline.core.registry import MODELS
from pipeline.inference.networks import MetaDeviceMode
from pipeline.train.engine import optimizers
from tests import project, texts
from tests.gpu.presets import images
from tests.hub import models
from tests.hub.models import timm
from tests.laws import test_resuming as resuming
from tests.laws.ranks import Server
from tests.laws.test_processes import TEXT
from tests.specs import text_spec
from tests.train.engine.building import ADAMW, MUON

WITH_UPDATES = {"model": models.section("llama", lora=True), "train.metric": "valid/perplexity"}
VARIANTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "timm": (
        lambda: images((32, 32, 3), samples=40),
        {**resuming.COMMON, "model": models.TIMM["test_resnet"], "optimizer.layer_decay": 0.7},
    ),
    "transformers, recomputed": (
        texts.texts,
        {**resuming.OF_TEXT, "model": models.section("bert"), "train.activation_checkpointing": True},
    ),
    "transformers, updates": (texts.corpus, {**resuming.OF_TEXT, **WITH_UPDATES}),
}


@pytest.fixture(autouse=True)
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights that updates are added to are in the current folder."""
    models.save(tmp_path, "llama", task="ForCausalLM")
    monkeypatch.chdir(tmp_path)


QUICK_VARIANT = "transformers, updates"


@pytest.mark.parametrize(
    ("data", "changes"),
    [pytest.param(*each, id=name, marks=() if name == QUICK_VARIANT else pytest.mark.slow) for name, each in VARIANTS.items()],
)
def test_a_run_stopped_at_any_step_ends_in_the_same_bytes(train_params, tmp_path: Path, data: Any, changes: dict[str, Any]) -> None:
    resuming.refuse_another_end(train_params(changes), data(), tmp_path / "checkpoints")


@pytest.mark.slow
def test_two_processes_with_two_lanes_end_in_the_bytes_of_one(tmp_path: Path) -> None:
    """Updates are drawn, trained, saved and merged alike."""
    ends = []
    changes = {**TEXT, **WITH_UPDATES, "train.steps": 6, "train.micro_batch_size": 6, "source.max_length": 12}
    folders = {count: project.make(tmp_path / f"of-{count}", changes, setting="code") for count in (1, 2)}
    with Server(tmp_path / "log", "pipeline.models.transformers", "transformers.models.llama.modeling_llama", "peft") as server:
        server.train(folders[1], verb="prepare")
        (folders[2] / "data/prepared").symlink_to(folders[1] / "data/prepared")
        for count, folder in folders.items():
            models.save(folder, "llama", task="ForCausalLM")
            server.train(folder, count)
            ends.append(project.digests(folder))
    assert ends[0] == ends[1]


OTHERS = re.compile(r"(pos|rel|bias|token)[^.]*$|(^|\.)(freqs|alpha)$")
"""Matches the names of positions, biases, tokens, the frequencies of rotations, and the `alpha` with which EfficientViM mixes."""
CONDITIONAL = "efficientnet_cc_b0_4e"
"""Its convolutions are no `nn.Conv2d`."""
QUICK = {
    "timm": (CONDITIONAL, "test_vit", "convnext_nano", "swin_tiny_patch4_window7_224"),
    "torchvision": ("resnet18", "swin_t", "vit_b_16"),
}


def names(network: nn.Module, settings: object) -> Iterator[tuple[str, nn.Parameter, dict]]:
    """Yield the name of each parameter with the parameter and its group in the optimizer."""
    named = {id(parameter): name for name, parameter in network.named_parameters()}
    for group in optimizers.groups_of(network, settings):
        yield from ((named[id(parameter)], parameter, group) for parameter in group["params"])


def left_out(network: nn.Module) -> list[str]:
    """Return the parameters with two dimensions above 1 that get no weight decay, without embeddings and those of OTHERS."""
    embeddings = {id(layer.weight) for layer in network.modules() if isinstance(layer, nn.Embedding)}
    return [
        name
        for name, parameter, group in names(network, ADAMW)
        if not group["weight_decay"] and sum(size > 1 for size in parameter.shape) > 1
        if id(parameter) not in embeddings and not OTHERS.search(name)
    ]


@pytest.mark.parametrize("architecture", models.CONFIGS)
def test_all_matrices_of_transformers_decay_and_the_hidden_ones_are_orthogonalised(architecture: str) -> None:
    reads_classes = architecture in models.ENCODERS
    network = MODELS.settings("transformers")(**models.section(architecture)).build(
        text_spec(classes=["a", "b"] if reads_classes else None)
    )
    assert left_out(network) == []
    hidden = {name for name, _, group in names(network, MUON) if group["hidden"]}
    layers = {name for name, p in network.named_parameters() if p.ndim >= 2 and re.search(r"\.(h|layers?)\.\d", name)}
    assert hidden >= layers
    assert {name for name, _, group in names(network, MUON) if group["transposed"]} == (layers if architecture == "gpt2" else set())


def every_family() -> dict[str, Iterable[str]]:
    """Return all architectures of torchvision, and one of each module of timm."""
    of_timm = (min(found, key=len) for module in timm.list_modules() if (found := timm.list_models(module=module)))
    return {"timm": of_timm, "torchvision": of_torchvision.list_models(module=of_torchvision)}


@pytest.mark.filterwarnings("ignore:The default weight initialization:FutureWarning")
@pytest.mark.parametrize("architectures", [lambda: QUICK, pytest.param(every_family, marks=pytest.mark.slow)], ids=["some", "every family"])
def test_all_matrices_of_timm_and_torchvision_decay(architectures: Callable[[], dict[str, Iterable[str]]]) -> None:
    chosen = architectures()
    for architecture in chosen["torchvision"]:
        with MetaDeviceMode():
            assert left_out(of_torchvision.get_model(architecture, weights=None)) == [], architecture
    for architecture in chosen["timm"]:
        with torch.device("meta"):
            assert left_out(timm.create_model(architecture, num_classes=10)) == [], architecture
