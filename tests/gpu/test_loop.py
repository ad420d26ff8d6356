"""The loop on a GPU: it never waits, its bytes do not depend on where the data lies, and it resumes to them."""

import gc
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from pipeline.core.prepared import Split
from pipeline.core.registry import MODELS
from pipeline.inference.batches import loader
from pipeline.inputs.image.first_layer import Preprocessing
from pipeline.train.augment.augmentation import Augmentation
from pipeline.train.augment.transform import RandomNumbers, refuse_unfit, transforms_of
from tests.laws import test_resuming as resuming
from tests.specs import image_spec
from tests.train.augment import augmenting
from tests.train.engine.building import same, weights

DEVICE = torch.device("cuda", 0)
CONVNET = {"name": "convnet", "weights": None, "width": 8, "dropout": 0.1}
RESNET = {"name": "resnet", "weights": None, "depth": 9, "width": 16}
CHANGES = {
    "model": CONVNET,
    "augment.crop_padding": 2,
    "augment.flip": "random",
    "augment.cutout": 2,
    "train.steps": 12,
    "train.epochs": None,
    "train.batch_size": 16,
    "train.micro_batch_size": 8,
    "train.report_every_steps": 12,
    "train.validate_every_steps": 12,
    "train.channels_last": True,
}
MIXED = {
    "augment.crop_padding": 0,
    "augment.resized_crop": 0.3,
    "augment.brightness": 0.3,
    "augment.contrast": 0.3,
    "augment.mixup": 0.4,
    "augment.cutmix": 1.0,
}
MUON = resuming.MUON | {"learning_rate": 0.02, "weight_decay": 0.01, "bias_lr_scale": 1.0, "outer_lr_scale": 1.0, "momentum": 0.9}
AIRBENCH = resuming.AIRBENCH | {"block1_width": 16, "block2_width": 32, "block3_width": 32, "whiten_images": 40}
BF16_TRUE = {"model": AIRBENCH, "train.precision": "bf16-true", "train.ema_decay": 0.0, "train.clip_norm": None}


@contextmanager
def waiting_is_an_error():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")  # torch says so once
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that some are gathered, and epochs laid out, in the few steps that are watched."""
    monkeypatch.setattr(loader, "BLOCK_BATCHES", 2)


def refuse_to_wait(training) -> None:
    """Between two reports, once the first steps have made what is made once."""
    reports = training.reports()
    for _ in range(3):
        next(reports)
    with waiting_is_an_error():
        for _ in range(8):
            next(reports)
    reports.close()


RECIPES = {
    "fp32": {"train.precision": "fp32"},
    "fp16": {"train.precision": "fp16"},
    "bf16": {"train.precision": "bf16"},
    "mixed": {**MIXED, "train.precision": "bf16"},
    "muon in bf16": {"optimizer": MUON, "train.precision": "bf16"},
    "muon in fp16": {"optimizer": MUON, "train.precision": "fp16"},
    "muon in bf16-true": {"optimizer": MUON, **BF16_TRUE},
}


@pytest.mark.parametrize(
    ("recipe", "share"),
    [*((name, loader.RESIDENT_SHARE) for name in RECIPES), *((name, 0.0) for name in ("fp32", "fp16", "bf16", "mixed"))],
)
def test_no_step_waits_for_the_gpu(train_params, begin, monkeypatch, recipe: str, share: float) -> None:
    """Wherever the data lies: on the GPU, or read ahead."""
    monkeypatch.setattr(loader, "RESIDENT_SHARE", share)
    refuse_to_wait(begin(train_params(CHANGES | RECIPES[recipe] | {"train.on_nonfinite": "skip"})))


def test_data_read_ahead_gives_the_same_bytes(train_params, begin, monkeypatch) -> None:
    found = []
    for number, share in enumerate((loader.RESIDENT_SHARE, 0.0)):
        monkeypatch.setattr(loader, "RESIDENT_SHARE", share)
        training = begin(train_params(CHANGES), str(number))
        list(training.reports())
        found.append(weights(training.state))
    assert same(*found)


@pytest.mark.parametrize("wishes", [{"crop_padding": 4, "flip": "random"}, augmenting.EVERYTHING], ids=["crop and flip", "everything"])
@pytest.mark.parametrize("resident", [True, False])
def test_a_gpu_augments_to_the_same_bytes_as_a_cpu(resident: bool, wishes: dict) -> None:
    spec = image_spec(shape=(37, 41, 3), classes=("a", "b", "c"), mean=(0.4, 0.5, 0.6), std=(0.2,) * 3)
    split = Split(augmenting.images(64, spec.inputs.row_shape).numpy(), np.arange(64) % 3)
    found = []
    for device in (torch.device("cpu"), DEVICE):
        augmentation = Augmentation(augmenting.settings(**wishes), spec, 64, seed=1, device=device)
        images = loader.SplitTensors(split, device, augmentation, resident=resident)
        batch = next(loader.training(images, batch_size=48, seed=1, start=0))
        found.append([tensor.cpu() for part in batch.parts(20) for tensor in part[:2]])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


@pytest.mark.parametrize("name", augmenting.TRANSFORMED)
def test_a_gpu_transforms_images_as_a_cpu_does_and_never_waits(name: str) -> None:
    spec, seeds = image_spec(shape=(37, 41, 3), classes=("a", "b"), mean=(0.5,) * 3, std=(0.2,) * 3), torch.arange(64) << 40
    chosen = augmenting.transform(name, **augmenting.TRANSFORMED[name])
    refuse_unfit(transforms_of([chosen]), spec.inputs, DEVICE)
    images = augmenting.images(64, spec.inputs.row_shape).permute(0, 3, 1, 2).float() / 255
    expected, theirs, places = chosen.changed(images, RandomNumbers(seeds)), images.to(DEVICE), seeds.to(DEVICE)
    with waiting_is_an_error():
        found = chosen.changed(theirs, RandomNumbers(places))
    assert torch.equal(RandomNumbers(places)(9).cpu(), RandomNumbers(seeds)(9))
    assert ((found.cpu() - expected).abs() > 1.5 / 255).float().mean() < 1e-3, "but for the places where rounding decides"


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_gpu_normalizes_images_as_a_cpu_does(channels: int, channels_last: bool) -> None:
    shape = (37, 41, channels)
    spec = image_spec(shape=shape, classes=("a", "b"), mean=(0.4, 0.5, 0.6)[:channels], std=(0.2, 0.3, 0.4)[:channels])
    normalize, images = Preprocessing(spec.inputs, channels_last=channels_last), augmenting.images(8, shape)
    expected = normalize(images)
    found = normalize.to(DEVICE)(images.to(DEVICE))
    assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("model", [CONVNET | {"dropout": 0.0}, RESNET, AIRBENCH], ids=lambda model: model["name"])
def test_compiled_in_bf16_the_gradient_is_that_of_the_plain_network(model: dict, monkeypatch, tmp_path) -> None:
    """At a size at which a maximum over an image is one of many."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    spec = image_spec(shape=(32, 32, 3), classes=tuple("abcdefghij"), mean=(0.5,) * 3, std=(0.25,) * 3)
    torch.manual_seed(0)
    network = MODELS.settings(model["name"])(**model).build(spec).to(DEVICE)
    images, targets = torch.randn(64, 3, 32, 32, device=DEVICE), torch.arange(64, device=DEVICE) % 10
    norms = []
    for call in (network, torch.compile(network, dynamic=False)):
        network.zero_grad()
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            logits = call(images)
        torch.nn.functional.cross_entropy(logits.float(), targets).backward()
        norms.append(float(torch.nn.utils.get_total_norm([each.grad for each in network.parameters() if each.grad is not None])))
    assert norms[1] == pytest.approx(norms[0], rel=0.05)


def peak(training) -> int:
    """Bytes that its first step held at most."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    reports = training.reports()
    next(reports)
    reports.close()
    return torch.cuda.max_memory_allocated()


def test_memory_that_runs_out_halves_the_micro_batch(train_params, begin, capsys) -> None:
    """Really: this process may take less than the whole batch needs, and more than half of it does."""
    large = CHANGES | {"model": CONVNET | {"width": 64}, "train.batch_size": 32_768, "train.steps": 2}
    whole, half = (train_params(large | {"train.micro_batch_size": size}) for size in (32_768, 16_384))
    allowed = (peak(begin(whole, "whole")) + peak(begin(half, "half"))) / 2
    gc.collect()
    torch.cuda.empty_cache()
    training = begin(whole)
    torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.get_device_properties(0).total_memory)
    try:
        list(training.reports())
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert training.progress.micro_batch_changes[0]["step"] == 1
    assert "train: out of memory at step 1: using micro-batches of" in capsys.readouterr().out


def test_activations_that_are_computed_again_take_less_memory(train_params, begin) -> None:
    large = CHANGES | {"model": RESNET | {"depth": 18, "width": 64}, "train.ema_decay": 0.0}
    large |= {"train.batch_size": 8192, "train.micro_batch_size": 8192}
    kept, again = (peak(begin(train_params(large | {"train.activation_checkpointing": wish}), str(wish))) for wish in (False, True))
    assert again < 0.8 * kept
