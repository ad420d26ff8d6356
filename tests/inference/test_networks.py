"""Networks before they take memory, what is loaded from a model file, and forward passes without gradients."""

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor, nn

from pipeline.core.refusal import Refusal
from pipeline.core.spec import Spec
from pipeline.inference import model_file, networks
from pipeline.inference.batch import IGNORED, Batch
from pipeline.inference.networks import Model, predict
from pipeline.inference.params import ModelSettings
from pipeline.inputs.image.first_layer import Preprocessing
from pipeline.inputs.table import first_layer as table
from pipeline.inputs.table.description import NumberColumn, TableInputs
from pipeline.models import mlp
from pipeline.train.engine.metrics import score
from pipeline.train.params import TrainParams
from tests.laws.test_resuming import AIRBENCH
from tests.specs import image_spec
from tests.train.engine.building import objective_of

SPEC = image_spec(shape=(32, 32, 3), classes=("a", "b", "c"), mean=(0.4,) * 3, std=(0.3,) * 3)
MODELS: list[dict[str, Any]] = [{"name": "resnet", "weights": None, "depth": 10, "width": 8}, AIRBENCH]


def test_a_build_without_a_result_is_refused() -> None:
    class Forgetful(ModelSettings):
        def build(self, spec: Spec) -> nn.Module:  # type: ignore[return]  # the return is forgotten
            nn.Linear(2, spec.num_outputs)

    with pytest.raises(Refusal, match=r"^pipeline/models/own\.py: its `build` returns NoneType, not a network: return an `nn.Module`$"):
        networks.build_on_meta(
            Forgetful(name="own", weights=None), image_spec(shape=(4, 3, 2), classes=("a", "b"), mean=(0.5, 0.5), std=(0.5, 0.5))
        )


def saved_and_loaded(params: TrainParams, network: nn.Module, spec: Spec, path: Path) -> Model:
    manifest = model_file.Manifest(params=params.model_dump(mode="json"), spec=spec, precision="fp32", step=1, inputs={}, fingerprint={})
    model_file.export(path, network.state_dict(), manifest)
    return model_file.load(path)[0]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["name"])
def test_a_loaded_model_has_every_tensor_that_was_saved(tmp_path, train_params, model: dict[str, Any]) -> None:
    params = train_params({"model": model})
    network = params.model.build(SPEC)
    for name, tensor in network.state_dict().items():
        if name.endswith("num_batches_tracked"):
            tensor.fill_(7)
        elif tensor.is_floating_point():
            tensor.add_(0.01)
    loaded = saved_and_loaded(params, network, SPEC, tmp_path / "model").network
    expected, found = network.state_dict(), loaded.state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], expected[name]) and found[name].dtype == expected[name].dtype for name in expected)
    assert not any(tensor.is_meta for tensor in (*loaded.parameters(), *loaded.buffers()))
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(loaded(images), network.eval()(images))


def test_a_meta_model_takes_no_memory_and_no_random_numbers() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    network = networks.build_on_meta(mlp.Settings(name="mlp", weights=None, width=65_536, depth=100, dropout=0.0), SPEC)
    assert network is not None
    assert all(parameter.is_meta for parameter in network.parameters())
    assert torch.equal(torch.get_rng_state(), before)


class Peeking(mlp.Settings):
    """Computes a width from values, as some architectures do, and looks into fresh contents, as few do."""

    kind: str

    def build(self, spec: Spec) -> nn.Module:
        width = int((torch.zeros(3) if self.kind == "values" else torch.arange(3)).sum().item()) + 4
        layer = nn.Linear(spec.inputs.height, width)
        if self.kind == "replaced":
            layer.weight.data = torch.tensor(np.ones((width, spec.inputs.height)), dtype=torch.float32)
        return nn.Sequential(nn.Flatten(), layer)


@pytest.mark.parametrize("kind", ["none", "values", "replaced"])
def test_a_build_that_looks_into_its_tensors_can_still_be_loaded(kind: str) -> None:
    settings = Peeking(name="mlp", weights=None, width=1, depth=1, dropout=0.0, kind=kind)
    assert (networks.build_on_meta(settings, SPEC) is None) == (kind != "none")
    networks.compare(settings.build(SPEC).state_dict(), settings, SPEC)


def test_a_network_beyond_the_memory_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = mlp.Settings(name="mlp", weights=None, width=1000, depth=2, dropout=0.0)
    networks.refuse_too_large(settings, SPEC)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"total": 10**6}))
    with pytest.raises(Refusal, match="the weights of this mlp take 0 GB, the machine has 0 GB: choose a smaller model"):
        networks.refuse_too_large(settings, SPEC)


@pytest.mark.parametrize(
    ("channels", "channels_last", "dtype"), [(1, False, torch.uint8), (1, True, torch.uint8), (3, True, torch.float32)]
)
def test_images_are_normalised_on_a_copy(channels: int, channels_last: bool, dtype: torch.dtype) -> None:
    mean, std = (0.2, 0.5, 0.7)[:channels], (0.1, 0.3, 0.4)[:channels]
    spec = image_spec(shape=(4, 5, channels), classes=("a", "b"), mean=mean, std=std)
    images = torch.randint(0, 256, (2, 4, 5, channels)).to(dtype)
    before = images.clone()
    found = Preprocessing(spec.inputs, channels_last=channels_last)(images)
    expected = (before.double() / 255 - torch.tensor(mean, dtype=torch.float64)) / torch.tensor(std, dtype=torch.float64)
    assert torch.equal(images, before)
    assert torch.allclose(found.permute(0, 2, 3, 1).double(), expected, atol=1e-5)
    assert found.stride() == ((20 * channels, 1, 5 * channels, channels) if channels_last else (20 * channels, 20, 5, 1))


def test_the_largest_number_of_a_table_is_a_finite_feature_and_a_missing_one_is_marked() -> None:
    inputs = TableInputs(columns=(NumberColumn(kind="number", name="c", missing=True, mean=0.0, std=1e-3),))
    features = table.Preprocessing(inputs, channels_last=False)(torch.tensor([[1e100], [-1e100], [2e-3], [torch.nan]], dtype=torch.float64))
    torch.testing.assert_close(features, torch.tensor([[1e6, 0.0], [-1e6, 0.0], [2.0, 0.0], [0.0, 1.0]]))


DEVICE = torch.device("cpu")
INPUTS = torch.arange(12.0).reshape(6, 2)


class Recording(nn.Module):
    """Returns its inputs, and keeps what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Tensor, ...]] = []

    def forward(self, *arguments: Tensor) -> Tensor:
        assert not self.training
        assert not torch.is_grad_enabled()
        self.calls.append(arguments)
        return arguments[0].double()


def test_inputs_without_targets_are_predicted_and_padding_is_cut_off() -> None:
    model = Recording().train()
    batches = [(Batch(INPUTS[:4]), 4), (Batch(INPUTS[[4, 5, 4, 4]]), 2)]
    outputs, found = zip(*predict(model, batches, precision="fp32", device=DEVICE), strict=True)
    assert torch.equal(torch.cat(outputs), INPUTS)
    assert all(output.dtype == torch.float64 for output in outputs), "as the model returns them, but in float32 at least"
    assert found == (None, None)
    assert model.training


def test_an_ignored_target_counts_in_no_loss_and_no_metric() -> None:
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0], [9.0, 0.0, 0.0]])
    targets = torch.tensor([0, 1, 0, 2])
    ignoring = targets.clone()
    ignoring[3] = IGNORED
    few, all_but_one = (
        score(predict(Recording(), [(batch, len(batch.inputs))], precision="fp32", device=DEVICE), objective_of())
        for batch in (Batch(logits[:3], targets[:3]), Batch(logits, ignoring))
    )
    assert all_but_one == few
    assert few["accuracy"] == 2 / 3


def test_the_inputs_of_a_batch_are_freed_before_the_next_forward_pass() -> None:
    freed: list[int] = []

    def made(number: int) -> Batch:
        inputs = INPUTS.clone()
        weakref.finalize(inputs, freed.append, number)
        return Batch(inputs)

    def batches():
        for number in range(3):
            assert len(freed) == number
            yield made(number), 6

    model = nn.Linear(2, 2)
    for _outputs, _targets in predict(model, batches(), precision="fp32", device=DEVICE):
        pass
    assert freed == [0, 1, 2]
