"""A model whose file does not hold all that it computes with is refused before its first step, and when it is exported."""

import math
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pipeline.__main__ import main
from pipeline.core.prepared import Prepared
from pipeline.core.refusal import Refusal
from pipeline.inference.cuda_graphs import changed_generators, host_randomness
from pipeline.models import mlp
from pipeline.train import model_trial
from tests import project
from tests.train.engine.building import begin

WIDTH = 8


class Net(nn.Module):
    """A network with one hidden layer. Subclasses add something to the layer's outputs (n, WIDTH)."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(num_inputs, WIDTH), nn.Linear(WIDTH, num_outputs)
        self.add()

    def add(self) -> None: ...

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.changed(self.hidden(images.flatten(1))).relu())

    def changed(self, x: Tensor) -> Tensor:
        return x


class InList(Net):
    def add(self) -> None:
        self.layers = [nn.Linear(WIDTH, WIDTH)]

    def changed(self, x: Tensor) -> Tensor:
        return self.layers[0](x)


class PlainTensor(Net):
    def add(self) -> None:
        self.scale = torch.randn(WIDTH)

    def changed(self, x: Tensor) -> Tensor:
        return x * self.scale


class OnAnotherDevice(PlainTensor):
    def add(self) -> None:
        self.scale = torch.ones(WIDTH, device="meta")  # as on the CPU, while the network is on a GPU

    def changed(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, (WIDTH,), self.scale)


class NotPersistent(PlainTensor):
    def add(self) -> None:
        self.register_buffer("scale", torch.randn(WIDTH), persistent=False)


class RandomNumber(PlainTensor):
    def add(self) -> None:
        self.scale = 0.5 + random.random()


class RunningMean(Net):
    def add(self) -> None:
        self.mean = torch.zeros(WIDTH)

    def changed(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = self.mean.lerp(x.detach().mean(0), 0.1)
        return x - self.mean


class Counter(Net):
    calls = 0

    def changed(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


class AlwaysDropout(Net):
    def changed(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5)


class PythonNoise(Net):
    def changed(self, x: Tensor) -> Tensor:
        return x * random.random() if self.training else x


class Centred(Net):
    def changed(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class FromEntropy(Net):
    def add(self) -> None:
        self.hidden.weight.data = torch.from_numpy(np.random.default_rng().standard_normal(self.hidden.weight.shape)).float()


class Sound(Net):
    """Has what looks like the mistakes of the others: weights of NumPy, a buffer and a list that follow from the settings, a cache, and dropout."""

    def add(self) -> None:
        self.hidden.weight.data = torch.from_numpy(np.random.randn(*self.hidden.weight.shape)).float()
        self.register_buffer("places", torch.arange(WIDTH) / WIDTH, persistent=False)
        self.norm, self.rates, self.cache = nn.BatchNorm1d(WIDTH), [0.5], {}

    def changed(self, x: Tensor) -> Tensor:
        self.cache[self.training] = x.detach()
        return nn.functional.dropout(self.norm(x) + self.places, self.rates[0], self.training)


def use(network: type[Net], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlp.Settings, "build", lambda _, spec: network(math.prod(spec.inputs.row_shape), spec.num_outputs))


@pytest.mark.parametrize(
    ("network", "problem"),
    [
        (
            InList,
            r"than the trained one, because the file lacks `layers\.0\.weight`, `layers\.0\.bias`: register layers in `nn\.ModuleList`",
        ),
        (PlainTensor, "because the file lacks `scale`"),
        (OnAnotherDevice, "`scale` is not on cpu, because it is not registered"),
        (NotPersistent, "because the file lacks `scale`"),
        (RandomNumber, "because the file lacks `scale`"),
        (RunningMean, "in training mode changes what the model file does not hold, because the file lacks `mean`"),
        (Counter, "in a second call outside of training mode, because the file lacks `calls`"),
        (AlwaysDropout, r"draws from or seeds torch outside of training mode: ask for `self\.training`"),
        (PythonNoise, "draws from Python's random, which a resumed training does not repeat"),
        (Centred, "depend on the other samples of its batch"),
        (FromEntropy, r"hidden\.weight has other initial values each time it is built"),
        (Sound, None),
    ],
)
def test_a_model_is_refused_if_its_file_or_its_seeds_do_not_decide_its_outputs(
    network: type[Net], problem: str | None, train_params, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(network, monkeypatch)
    training = begin(train_params({}), prepared)
    if problem is None:
        model_trial.refuse_unfit(training)
        return
    with pytest.raises(Refusal, match=rf"^model\.name: pipeline/models/mlp\.py: .*{problem}"):
        model_trial.refuse_unfit(training)


class SilentAtFirst(PlainTensor):
    def add(self) -> None:
        super().add()
        nn.init.zeros_(self.head.weight)


def test_what_only_trained_weights_show_is_refused_when_the_model_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    monkeypatch.chdir(project.make(tmp_path))
    use(SilentAtFirst, monkeypatch)
    assert main(["prepare"]) == 0
    assert main(["train"]) == 2
    assert "because the file lacks `scale`" in capsys.readouterr().err
    assert not Path("models/model.safetensors").exists()


def test_too_little_memory_for_another_network_ends_no_training(
    train_params, prepared: Prepared, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    training = begin(train_params({}), prepared)
    capsys.readouterr()

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(model_trial.model_file, "rebuild", fail)
    model_trial.refuse_unfit(training)
    assert "is not compared with its model file" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "draw"), [("torch", lambda: torch.rand(1)), ("Python's random", random.random), ("numpy.random", np.random.rand)]
)
def test_a_draw_of_any_generator_is_found(name: str, draw: Callable[[], object]) -> None:
    np.random.rand()  # the next draw moves the position in NumPy's state alone
    before = host_randomness()
    assert changed_generators(before) == []
    draw()
    assert changed_generators(before) == [name]
