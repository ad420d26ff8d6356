"""The blocks over which `optimizer.layer_decay` lowers the learning rate: for torchvision those of timm, for the other models their own."""

from typing import Any

import pytest
import torch
from torchvision import models

from pipeline.core.refusal import Refusal
from pipeline.core.registry import MODELS
from pipeline.core.spec import Spec
from pipeline.inference import networks
from pipeline.models.torchvision import BLOCK_NAMES
from pipeline.train.engine import optimizers
from tests.models import text_models
from tests.specs import image_spec

IMAGES = image_spec(shape=(224, 224, 3), classes=("a", "b"), mean=(0.5,) * 3, std=(0.2,) * 3)
TORCHVISION = {  # architecture: timm 1.0.31's number of blocks; the first names of the first and of the last block, and the last of the last
    "convnext_tiny": (18, "features.1.0.layer_scale", "features.7.2.layer_scale", "features.7.2.block.5.bias"),
    "densenet121": (58, "features.denseblock1.denselayer1.norm1", "features.denseblock4.denselayer16.norm1", "denselayer16.conv2.weight"),
    "efficientnet_b0": (16, "features.1.0.block", "features.7.0.block", "features.8.1.bias"),
    "inception_v3": (12, "Conv2d_3b_1x1", "Mixed_7c", "Mixed_7c.branch_pool.bn.bias"),
    "maxvit_t": (4, "blocks.0", "blocks.3", "grid_attention.mlp_layer.3.bias"),
    "mnasnet1_0": (17, "layers.3.weight", "layers.13.0", "layers.15.bias"),
    "mobilenet_v2": (17, "features.1.conv", "features.17.conv", "features.18.1.bias"),
    "mobilenet_v3_small": (12, "features.1.block", "features.12.0", "features.12.1.bias"),
    "regnet_y_1_6gf": (27, "trunk_output.block1.block1-0", "trunk_output.block4.block4-1", "f.c.1.bias"),
    "resnet18": (8, "layer1.0.conv1", "layer4.1.conv1", "layer4.1.bn2.bias"),
    "swin_t": (12, "features.1.0.norm1", "features.7.1.norm1", "norm.bias"),
    "vit_b_32": (12, "encoder.layers.encoder_layer_0.ln_1", "encoder.layers.encoder_layer_11.ln_1", "encoder.ln.bias"),
    # not in timm: the modules that the papers count
    "googlenet": (9, "inception3a.branch1", "inception5b.branch1", "inception5b.branch4.1.bn.bias"),
    "shufflenet_v2_x0_5": (16, "stage2.0.branch1", "stage4.3.branch2", "conv5.1.bias"),
    "squeezenet1_0": (8, "features.3.squeeze", "features.12.squeeze", "features.12.expand3x3.bias"),
}
WITHOUT_BLOCKS = {"AlexNet", "VGG"}
RESNET = {"name": "resnet", "width": 8}
ENCODER, DECODER = text_models.CLASSIFIERS[-1], text_models.LANGUAGE_MODELS[-2]
OWN = [  # settings, and the number of layers before the head
    (RESNET | {"depth": 9}, 4),
    (RESNET | {"depth": 18}, 9),
    ({"name": "convnet", "width": 8, "dropout": 0.0}, 3),
    ({"name": "mlp", "width": 8, "depth": 5, "dropout": 0.0}, 5),
    ({"name": "airbench"} | MODELS.settings("airbench").RECOMMENDED, 4),
    (ENCODER, 3),
    (DECODER, 3),
    (text_models.CLASSIFIERS[0], 3),
    (text_models.LANGUAGE_MODELS[0], 3),
]


def layers(settings: dict[str, Any], spec: Spec) -> dict[int, list[str]]:
    """Return the names of the parameters by their depth."""
    model = MODELS.settings(settings["name"])(**{"weights": None} | settings)
    network = networks.build_on_meta(model, spec)
    assert network is not None
    depth = optimizers.depths(network)
    found: dict[int, list[str]] = {}
    for name, parameter in network.named_parameters():
        found.setdefault(depth[id(parameter)], []).append(name)
    assert sorted(found) == list(range(len(found)))
    return found


@pytest.mark.parametrize("architecture", TORCHVISION)
def test_torchvision_has_the_blocks_of_timm(architecture: str) -> None:
    num_blocks, first, last, end = TORCHVISION[architecture]
    found = layers({"name": "torchvision", "architecture": architecture, "stem": "original", "pretrained": None}, IMAGES)
    assert len(found) == num_blocks + 2, "the stem and the head beside the blocks"
    assert found[num_blocks][0].startswith(first)
    assert found[1][0].startswith(last)
    assert found[1][-1].endswith(end)
    assert found[0][-1].startswith(("fc.", "head", "classifier."))


def test_every_architecture_of_torchvision_has_known_blocks_or_none() -> None:
    modules = {models.get_model_builder(name).__module__.rpartition(".")[2] for name in models.list_models(module=models)}
    tested = {models.get_model_builder(name).__module__.rpartition(".")[2] for name in TORCHVISION}
    assert modules - tested == {"alexnet", "vgg"}
    assert not WITHOUT_BLOCKS & set(BLOCK_NAMES)
    with torch.device("meta"), pytest.raises(Refusal, match=r"optimizer\.layer_decay: this model has no blocks"):
        optimizers.depths(models.vgg11())


@pytest.mark.parametrize(("settings", "deepest"), OWN, ids=lambda value: text_models.title(value) if isinstance(value, dict) else None)
def test_the_models_of_this_project_count_their_blocks(settings: dict[str, Any], deepest: int) -> None:
    found = layers(settings, text_models.spec_for(settings) if "pooling" in settings else IMAGES)
    assert max(found) == deepest
