"""Activation checkpointing: less memory kept, equal bytes."""

import pytest
import torch

from pipeline.core.refusal import Refusal
from pipeline.train import blocks
from tests.laws.test_resuming import AIRBENCH, CONVNET
from tests.train.engine.building import begin, run, same, steps


@pytest.mark.parametrize("model", [CONVNET, AIRBENCH], ids=lambda model: model["name"])
def test_recomputing_activations_changes_no_byte(train_params, prepared, model) -> None:
    changes = {"model": model, **steps(3), "train.batch_size": 16, "train.micro_batch_size": 8}
    trainings = [begin(train_params({**changes, "train.activation_checkpointing": recomputing}), prepared) for recomputing in (False, True)]
    for training in trainings:
        run(training)
    assert same(*(training.state.tensors() for training in trainings))


def test_activations_are_forgotten_and_computed_again(train_params, prepared) -> None:
    calls: dict[bool, int] = {}
    for recomputing in (False, True):
        training = begin(train_params({"model": CONVNET, "train.activation_checkpointing": recomputing}), prepared)
        counted = next(module for module in training.state.model.modules() if isinstance(module, torch.nn.Conv2d))
        seen = []
        counted.register_forward_hook(lambda *_, seen=seen: seen.append(1))
        training.state.model.train()
        training.state.model(torch.zeros(4, 8, 8, 1, dtype=torch.uint8)).sum().backward()
        calls[recomputing] = len(seen)
    assert calls == {False: 1, True: 2}


def test_a_model_without_blocks_is_refused(train_params, prepared, monkeypatch) -> None:
    monkeypatch.setattr(blocks, "blocks", lambda _network: [])
    with pytest.raises(Refusal, match=r"train\.activation_checkpointing: the model mlp has no blocks"):
        begin(train_params({"train.activation_checkpointing": True}), prepared)
