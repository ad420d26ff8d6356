"""`train.channels_last: auto`: what it selects for which network, precision and device, and that nothing else about it differs."""

from typing import Any

import pytest
import torch
from torch import nn
from torchvision import models

from pipeline.train import memory_format
from tests.laws.test_resuming import CONVNET
from tests.train.engine.building import begin, run, same, steps, weights

DENSE = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3, groups=2))
WHERE = [("cpu", "fp32"), ("cpu", "bf16"), ("cuda", "fp32"), ("cuda", "bf16"), ("cuda", "fp16"), ("cuda", "bf16-true")]
RULE: dict[str, tuple[Any, list[bool]]] = {
    "dense": (lambda: DENSE, [True, True, False, True, True, True]),
    "resnet18": (models.resnet18, [True, True, False, True, True, True]),
    "mobilenet": (models.mobilenet_v3_small, [True, False, False, True, True, True]),
    "a vision transformer": (models.vit_b_16, [False] * 6),
    "no convolution": (lambda: nn.Linear(2, 2), [False] * 6),
}


@pytest.mark.parametrize(("build", "expected"), RULE.values(), ids=RULE)
def test_auto_selects_by_device_precision_and_convolutions(train_params, build, expected: list[bool]) -> None:
    settings = train_params({"train.channels_last": "auto"}).train
    divided = train_params({"train.channels_last": "auto", "train.sharding": "full"}).train
    with torch.device("meta"):
        network = build()
    found = [memory_format.choose(settings, network, precision, torch.device(device)) for device, precision in WHERE]  # type: ignore[arg-type]
    assert found == expected
    assert not memory_format.choose(divided, network, "bf16", torch.device("cuda")), "FSDP2 needs weights in contiguous order"
    for value in (True, False):
        fixed = train_params({"train.channels_last": value}).train
        assert memory_format.choose(fixed, network, "bf16", torch.device("cuda")) is value


def test_auto_trains_to_the_bytes_of_the_value_that_it_selects(train_params, prepared) -> None:
    changes = {**steps(4), "model": CONVNET, "train.precision": "fp32"}
    trained = [begin(train_params({**changes, "train.channels_last": value}), prepared) for value in ("auto", True, False)]
    for training in trained:
        run(training)
    auto, chosen, other = (training.state for training in trained)
    expected = memory_format.is_faster(auto.model.network, "fp32", auto.device)
    assert auto.model.channels_last is expected
    assert same(weights(auto), weights(chosen if expected else other))
