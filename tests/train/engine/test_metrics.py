"""Scoring against plain formulas, whatever the batch size, and what a window of steps comes to on the host."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pipeline.core.prepared import Prepared
from pipeline.core.refusal import Refusal
from pipeline.evaluate.reports.metrics import Predictions
from pipeline.inference import precision
from pipeline.inference.batches import loader
from pipeline.inference.measuring import Measured
from pipeline.inference.networks import Model, predict
from pipeline.tasks.classification.evaluate import scored
from pipeline.train.engine import metrics
from pipeline.train.engine.metrics import StepMetrics
from tests.evaluate.reports.test_metrics import SETTINGS
from tests.train.engine.building import model_of, objective_of

OBJECTIVE = objective_of()


@pytest.fixture
def model(prepared: Prepared) -> Model:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    return model_of(network, prepared.spec, channels_last=False)


@pytest.mark.parametrize("batch_size", [7, 64])
def test_loss_and_accuracy_are_means_over_the_split(prepared: Prepared, model: Model, cpu: torch.device, batch_size: int) -> None:
    images = loader.SplitTensors(prepared.split("test"), cpu)
    predictions = predict(model, loader.scoring(images, batch_size=batch_size), precision="fp32", device=cpu)
    measured = Measured(["macro_f1"], prepared.spec, key="train.metrics", num_samples=len(images), batch_size=batch_size)
    found = metrics.score(predictions, OBJECTIVE, measured=measured)
    with torch.no_grad():
        logits = model.eval()(images.held)
    assert found["loss"] == pytest.approx(cross_entropy(logits, images.placement.targets).item(), rel=1e-5)
    assert found["accuracy"] == pytest.approx((logits.argmax(1) == images.placement.targets).float().mean().item())
    targets = images.placement.targets.numpy()
    predictions = Predictions.of(logits.numpy(), targets)
    evaluated = scored(predictions, tuple("abc"), SETTINGS)
    assert found["macro_f1"] == evaluated["macro_f1"], "to the bit, for every batch size"


def test_a_precision_that_a_gpu_cannot_do_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "Old GPU")
    expected = {(9, 0): "bf16", (8, 0): "bf16", (7, 5): "fp16", (5, 0): "fp32"}
    for capability, used in expected.items():
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device, capability=capability: capability)
        assert precision.choose("auto", device) == used
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 5))
    assert precision.choose("fp16", device) == "fp16"
    for requested in ("bf16", "bf16-true"):
        message = f"train.precision: {requested} needs compute capability 8.0, but Old GPU has 7.5: write `train.precision: auto`"
        with pytest.raises(Refusal, match=message):
            precision.choose(requested, device)


QUANTITIES = ("loss", "norm", "skipped", "correct")


def test_what_a_step_did_not_measure_counts_as_nothing() -> None:
    window = StepMetrics()
    one = dict.fromkeys(QUANTITIES, torch.tensor(2.0))
    window.add(8, one)
    window.add(8, {**one, "norm": None, "skipped": None})
    reading = window.read_values()
    assert (reading.loss, reading.norm) == ([0.25, 0.25], [2.0, 0.0])
    assert reading.skipped == [2.0, 0.0]
    assert window.num_targets == 16
