"""Weights of 16 bits: which tensors have them, that they learn, and that a model file gives the logits of the training that wrote it."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.torch_version import TorchVersion

from pipeline.core.refusal import Refusal
from pipeline.inference import model_file, networks, precision
from pipeline.inference.batches import loader
from tests.laws.test_resuming import AIRBENCH, BF16_TRUE, CONVNET, MUON, SGD
from tests.train.engine.building import begin, run, same, steps

CHANGES = {
    "model": AIRBENCH,
    "optimizer": MUON,
    **steps(8),
    "train.batch_size": 20,
    "train.micro_batch_size": 20,
    "train.clip_norm": 1.0,
    **BF16_TRUE,
}


def test_converting_to_bf16_keeps_the_memory_order_and_what_is_no_floating_point_number() -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).to(memory_format=torch.channels_last)
    network.register_buffer("place", torch.arange(3))
    network.register_buffer("noise", torch.rand(3))
    for _ in range(2):
        precision.to_bf16(network)
    assert network[0].weight.is_contiguous(memory_format=torch.channels_last)
    found = {name: tensor.dtype for name, tensor in network.state_dict().items()}
    assert (found["0.weight"], found["noise"], found["place"]) == (torch.bfloat16, torch.bfloat16, torch.int64)
    assert found["1.weight"] == found["1.running_mean"] == torch.float32


@pytest.mark.parametrize(("model", "optimizer"), [(AIRBENCH, MUON), (CONVNET, SGD)], ids=["airbench", "convnet"])
def test_it_learns_as_float32_does_and_says_that_it_is_slow(train_params, prepared, capsys, model, optimizer) -> None:
    losses = {}
    for used in ("fp32", "bf16-true"):
        changes = {"model": model, "optimizer": optimizer, "train.steps": 24, "train.precision": used}
        reports = run(begin(train_params({**CHANGES, **changes}), prepared))
        losses[used] = [report.metrics["train/objective"] for report in reports if report.metrics]
    assert losses["bf16-true"] == pytest.approx(losses["fp32"], rel=0.05)
    assert losses["bf16-true"][-1] < 0.9 * losses["bf16-true"][0]
    assert "warning: train.precision: bf16-true is slow on a CPU" in capsys.readouterr().out


def test_a_model_file_gives_the_logits_of_the_training_to_whoever_opens_it(train_params, prepared, tmp_path: Path) -> None:
    params = train_params({**CHANGES, "train.channels_last": True})
    training = begin(params, prepared)
    run(training)
    cpu, images = torch.device("cpu"), loader.SplitTensors(prepared.split("test"), torch.device("cpu"))
    batches = list(loader.scoring(images, batch_size=20))
    [(expected, _)] = networks.predict(training.state.scored, batches, precision="bf16-true", device=cpu)
    manifest = model_file.Manifest(
        params=params.model_dump(mode="json"), spec=prepared.spec, precision="bf16-true", step=8, inputs={}, fingerprint={}
    )
    model_file.export(tmp_path / "model", training.exported()[0], manifest)
    model, _ = model_file.load(tmp_path / "model")
    [(found, _)] = networks.predict(model, batches, precision="bf16-true", device=cpu)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
    assert torch.equal(model(images.held), expected)
    assert same(model.network.state_dict(), training.state.model.network.state_dict())


def test_a_torch_that_loses_updates_is_refused_on_a_cpu(train_params, prepared, monkeypatch) -> None:
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.13.0"))
    with pytest.raises(Refusal, match=r"bf16-true needs torch 2\.14 or newer on a CPU, this is 2\.13\.0: write `train\.precision: fp32`"):
        begin(train_params(CHANGES), prepared)
    precision.refuse_lost_updates("bf16-true", torch.device("cuda", 0))
    precision.refuse_lost_updates("bf16", torch.device("cpu"))
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.14.0"))
    precision.refuse_lost_updates("bf16-true", torch.device("cpu"))
