"""Each architecture's float32 gradient equals that of float64, in every repetition and in both memory formats.

oneDNN has had convolutions whose weight gradient read uninitialised memory. Such a fault is found here, and not first in a result. The
gradient of a batch of texts depends neither on its division into micro-batches nor on its padding.
"""

import itertools
from typing import Any

import pytest
import torch

from pipeline.core.registry import MODELS
from pipeline.inference.batches import blocks
from pipeline.inference.networks import Model
from pipeline.train.engine import update
from pipeline.train.training import Training
from tests import texts
from tests.laws.test_resuming import AIRBENCH, MOBILENET
from tests.models import text_models
from tests.specs import image_spec
from tests.train.engine.building import begin, model_of

SIXTEEN = image_spec(shape=(16, 16, 3), classes=("a", "b", "c"), mean=(0.5,) * 3, std=(0.25,) * 3)
GREY = image_spec(shape=(8, 8, 1), classes=("a", "b", "c"), mean=(0.5,), std=(0.25,))
SMALLEST = [
    {"name": "mlp", "weights": None, "width": 3, "depth": 2, "dropout": 0.0},
    {"name": "convnet", "weights": None, "width": 1, "dropout": 0.0},
    {"name": "resnet", "weights": None, "width": 8, "depth": 9},
    {"name": "resnet", "weights": None, "width": 8, "depth": 18},
    AIRBENCH,
    MOBILENET,
]


def gradient(model: Model, images: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    # in inference mode: no dropout, and no small batch statistics that would magnify the last digit
    model.eval()(images).square().sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.requires_grad])


def assert_exact_and_equal(model: Model, inputs: torch.Tensor) -> None:
    """Compare the gradients of repetitions with each other and with that of float64."""
    found = []
    for fill in range(4):
        dirt = [torch.full((size,), 1e3 * fill) for size in (500, 3_000, 20_000)]
        del dirt  # what is allocated next is likely to lie on this memory
        found.append(gradient(model, inputs))
    exact = gradient(model.double(), inputs)
    assert all(torch.equal(found[0], other) for other in found)
    assert (found[0] - exact).norm() / exact.norm() < 1e-4


@pytest.mark.parametrize("section", SMALLEST, ids=lambda section: f"{section['name']}{section.get('depth', '')}")
def test_gradients_are_right_and_the_same_every_time(section) -> None:
    """With images in colour and grey, in both memory formats."""
    for spec, channels_last in itertools.product((SIXTEEN, GREY), (False, True)):
        torch.manual_seed(0)
        network = MODELS.settings(section["name"])(**section).build(spec)
        images = torch.randint(0, 256, (8, *spec.inputs.row_shape), dtype=torch.uint8)
        assert_exact_and_equal(model_of(network, spec, channels_last=channels_last), images)


@pytest.mark.parametrize("section", [*text_models.CLASSIFIERS, *text_models.LANGUAGE_MODELS, text_models.NGRAMS], ids=text_models.title)
def test_gradients_of_text_models_are_right_and_the_same_every_time(section) -> None:
    model = Model(text_models.build(section, length=16), torch.nn.Identity())
    assert_exact_and_equal(model, text_models.texts([16, 9, 1, 0, 16, 5, 12, 16], padded_to=16))


TEXT_MODELS = {
    "lstm": ("texts", texts.LSTM),
    "gru, mean": ("texts", texts.LSTM | {"cell": "gru", "pooling": "mean"}),
    "transformer": ("texts", texts.TRANSFORMER),
    "transformer, first": ("texts", texts.TRANSFORMER | {"pooling": "first", "positions": "rotary"}),
    "ngrams": ("texts", texts.NGRAMS),
    "language model: lstm": ("corpus", texts.LSTM_LANGUAGE_MODEL),
    "language model: transformer": ("corpus", texts.TRANSFORMER_LANGUAGE_MODEL),
    "pairs: transformer": ("pairs", texts.ENCODER_DECODER),
}


def text_training(train_params, data: str, model: dict[str, Any], *, batch_size: int) -> Training:
    """Return a training in float64, without dropout, whose gradient depends on its texts alone."""
    sizes = {"train.batch_size": batch_size, "train.micro_batch_size": batch_size}
    training = begin(train_params(texts.UNAUGMENTED | sizes | {"model": model | {"dropout": 0.0}}), getattr(texts, data)())
    training.state.model.double()
    return training


def gradient_of_step(training: Training, step: int, micro_batch_size: int) -> torch.Tensor:
    """Return the gradient of a batch through the loader and the loop, and its loss as the last element."""
    batches = training.batches(step)
    batch, on_device = next(batches), training.step()
    on_device.begin(batch.num_targets, learning_rate=0.0)
    loss, _ = update.accumulate_gradients(training.state, batch, micro_batch_size, seed=training.plan.seed, step=on_device)
    batches.close()
    return torch.cat([*(parameter.grad.flatten() for parameter in training.state.parameters), loss[None]])


@pytest.mark.parametrize(("data", "model"), TEXT_MODELS.values(), ids=TEXT_MODELS)
def test_a_batch_of_texts_has_the_same_gradient_in_micro_batches_of_any_size(train_params, data: str, model) -> None:
    """The batch of step 2 begins in one epoch and ends in the next."""
    training = text_training(train_params, data, model, batch_size=17)
    for step in (0, 2):
        whole = gradient_of_step(training, step, 17)
        for size in (16, 6, 1):
            assert torch.allclose(gradient_of_step(training, step, size), whole, rtol=0, atol=1e-12), size


@pytest.mark.parametrize("name", ["lstm", "gru, mean", "transformer", "ngrams", "pairs: transformer"])
def test_padding_changes_no_gradient_of_the_loop(train_params, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    training = text_training(train_params, *TEXT_MODELS[name], batch_size=2)
    widths = {next(next(training.batches(step)).parts(2)).inputs.shape[1] for step in range(6)}
    assert min(widths) < texts.LENGTH, "no padding was cut off"
    unpadded = [gradient_of_step(training, step, 2) for step in range(6)]
    monkeypatch.setattr(blocks, "without_padding", lambda inputs, _: inputs)
    for step, expected in enumerate(unpadded):
        assert torch.allclose(gradient_of_step(training, step, 2), expected, rtol=0, atol=1e-12)
