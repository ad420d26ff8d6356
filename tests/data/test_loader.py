"""Batches: full in training, every sample once in scoring, and equal bytes whether the data is resident or streamed."""

from itertools import chain, islice

import torch

from pipeline.data import loader
from pipeline.data.augment import Augmentation
from pipeline.data.prepared import Prepared
from pipeline.params.train import AugmentSettings

AUGMENT = AugmentSettings(crop=1, flip=True, cutout=2)


def training_images(prepared: Prepared, device: torch.device, *, resident: bool) -> loader.Images:
    augmentation = Augmentation(AUGMENT, prepared.spec, len(prepared.train), seed=1, device=device)
    return loader.Images(prepared.train, device, augmentation, resident=resident)


def steps(images: loader.Images, *, start: int, count: int) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    batches = loader.training(images, batch_size=16, seed=1, start=start)
    return [list(batch.parts(6)) for batch in islice(batches, count)]


def same(first: list[list[tuple[torch.Tensor, torch.Tensor]]], second: list[list[tuple[torch.Tensor, torch.Tensor]]]) -> bool:
    pairs = zip(chain.from_iterable(first), chain.from_iterable(second), strict=True)
    return all(torch.equal(left, right) for one, other in pairs for left, right in zip(one, other, strict=True))


def test_resident_and_streamed_data_give_the_same_bytes(prepared: Prepared, cpu: torch.device) -> None:
    resident, streamed = (steps(training_images(prepared, cpu, resident=resident), start=0, count=8) for resident in (True, False))
    assert same(resident, streamed)


def test_starting_at_a_step_continues_the_stream(prepared: Prepared, cpu: torch.device) -> None:
    images = training_images(prepared, cpu, resident=True)
    assert same(steps(images, start=0, count=9)[5:], steps(images, start=5, count=4))


def test_batches_are_full_and_cut_evenly(prepared: Prepared, cpu: torch.device) -> None:
    for batch in steps(training_images(prepared, cpu, resident=True), start=0, count=8):
        assert [len(targets) for _, targets in batch] == [6, 5, 5]
        assert all(inputs.shape[1:] == (8, 8, 1) and inputs.dtype == torch.uint8 for inputs, _ in batch)


def test_scoring_reads_every_sample_once_in_order_and_pads_the_last_batch(prepared: Prepared, cpu: torch.device) -> None:
    images = loader.Images(prepared.train, cpu)
    batches = list(loader.scoring(images, batch_size=16))
    assert [(len(inputs), real) for inputs, _, real in batches] == [(16, 16), (16, 16), (16, 16), (16, 2)]
    targets = torch.cat([targets[:real] for _, targets, real in batches])
    assert targets.tolist() == prepared.train.targets.tolist()


def test_a_split_too_large_for_memory_is_streamed(prepared: Prepared, cpu: torch.device, monkeypatch) -> None:
    monkeypatch.setattr(loader, "RESIDENT_SHARE", 0.0)
    assert not loader.Images(prepared.train, cpu).resident
