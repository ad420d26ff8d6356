"""Batches: full in training, every sample once in scoring, and equal bytes whether the data is resident or streamed."""

import threading
from itertools import chain, islice

import numpy as np
import pytest
import torch

from pipeline.core.prepared import Prepared, Split
from pipeline.inference.batch import Batch
from pipeline.inference.batches import batch_index, loader
from pipeline.inference.batches.batch_index import BatchIndex, Samples
from pipeline.inference.batches.loader import read_ahead
from tests.train.augment.augmenting import SOME, augmentation

PLAIN = {"crop_padding": 1, "flip": "random", "cutout": 2}
MIXED = {"crop_padding": 1, "flip": "alternating", "brightness": 0.2, "contrast": 0.2, "transforms": SOME, "mixup": 0.8, "cutmix": 1.0}


def training_images(prepared: Prepared, device: torch.device, *, resident: bool, wishes: dict[str, object] = PLAIN) -> loader.SplitTensors:
    found = augmentation(len(prepared.train), spec=prepared.spec, **wishes)
    return loader.SplitTensors(prepared.train, device, found, resident=resident)


def steps(images: loader.SplitTensors, *, start: int, count: int) -> list[list[Batch]]:
    batches = loader.training(images, batch_size=16, seed=1, start=start)
    return [list(batch.parts(6)) for batch in islice(batches, count)]


def same(first: list[list[Batch]], second: list[list[Batch]]) -> bool:
    pairs = zip(chain.from_iterable(first), chain.from_iterable(second), strict=True)
    return all(torch.equal(left, right) for one, other in pairs for left, right in zip(one[:2], other[:2], strict=True))


@pytest.mark.parametrize("wishes", [MIXED, {}], ids=["mixed", "nothing"])
def test_how_many_batches_are_gathered_in_one_go_changes_no_byte(prepared: Prepared, cpu: torch.device, monkeypatch, wishes) -> None:
    """The split has 50 samples: a block of 16 batches is five epochs long."""
    images, found = training_images(prepared, cpu, resident=True, wishes=wishes), []
    for batches, bytes_ in ((1, 2**24), (16, 2**24), (16, 0), (16, 3 * 16 * 64)):
        monkeypatch.setattr(loader, "BLOCK_BATCHES", batches)
        monkeypatch.setattr(loader, "BLOCK_BYTES", bytes_)
        found.append([list(batch.parts(16)) for batch in islice(loader.training(images, batch_size=16, seed=1, start=2), 20)])
    assert all(same(found[0], other) for other in found[1:])


def test_no_cut_of_a_batch_changes_a_sample(prepared: Prepared, cpu: torch.device) -> None:
    images = training_images(prepared, cpu, resident=True, wishes=MIXED)
    for batch in islice(loader.training(images, batch_size=15, seed=1, start=0), 4):
        whole = next(batch.parts(15))[:2]
        for max_size in (1, 2, 5, 8):
            parts = [torch.cat(tensors) for tensors in zip(*(part[:2] for part in batch.parts(max_size)), strict=True)]
            assert all(torch.equal(*pair) for pair in zip(whole, parts, strict=True))


def test_a_sample_is_mixed_with_the_one_at_the_mirrored_place(prepared: Prepared, cpu: torch.device) -> None:
    plain, mixed = (
        next(loader.training(training_images(prepared, cpu, resident=True, wishes=wishes), batch_size=15, seed=1, start=0))
        for wishes in ({"flip": "random"}, {"flip": "random", "mixup": 1.0})
    )
    before, classes = next(plain.parts(15))
    after, targets = next(mixed.parts(15))
    share = (mixed.batch_index.draws[1] / 256).view(-1, 1, 1, 1)
    expected = (1 - share) * before + share * before.flip(0)
    assert (after - expected).abs().max() <= 0.5
    own, other = (torch.eye(3)[indices] for indices in (classes, classes.flip(0)))
    assert torch.allclose(targets, (1 - share[:, 0, 0]) * own + share[:, 0, 0] * other)
    assert torch.equal(after[7], before[7]), "the one in the middle is its own partner"


def test_starting_at_a_step_continues_the_stream(prepared: Prepared, cpu: torch.device) -> None:
    images = training_images(prepared, cpu, resident=True)
    assert same(steps(images, start=0, count=9)[5:], steps(images, start=5, count=4))


def test_scoring_reads_every_sample_once_in_order_and_pads_the_last_batch(prepared: Prepared, cpu: torch.device) -> None:
    images = loader.SplitTensors(prepared.train, cpu)
    batches = list(loader.scoring(images, batch_size=16))
    assert [(len(inputs), real) for (inputs, *_), real in batches] == [(16, 16), (16, 16), (16, 16), (16, 2)]
    (last, *_), real = batches[-1]
    assert (last[real:] == last[:1]).all()
    targets = torch.cat([batch.targets[:real] for batch, real in batches])
    assert targets.tolist() == prepared.train.targets.tolist()


def test_a_split_too_large_for_memory_is_streamed(prepared: Prepared, cpu: torch.device, monkeypatch) -> None:
    assert str(loader.SplitTensors(prepared.train, cpu)) == "50 samples (0.0 MB) held on cpu"
    monkeypatch.setattr(loader, "RESIDENT_SHARE", 0.0)
    assert str(loader.SplitTensors(prepared.train, cpu)) == "50 samples (0.0 MB) read from the disk, a batch ahead"


def test_what_goes_wrong_in_the_reader_reaches_the_training(cpu: torch.device) -> None:
    inputs, targets = np.zeros((4, 2, 2, 1), np.uint8), torch.zeros(2, dtype=torch.int64)

    def batch_indices():
        yield BatchIndex(torch.tensor([0, 1]), targets)
        raise OSError("the disk is gone")

    batches = read_ahead(Samples(inputs), batch_indices(), cpu)
    next(batches)
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)


def test_a_batch_is_untouched_until_the_next_one_is_asked_for(cpu: torch.device) -> None:
    """However far the reader is ahead by then."""
    split = Split(np.arange(50, dtype=np.uint8).reshape(50, 1, 1, 1).repeat(4, axis=3), np.zeros(50, np.int64))
    images = loader.SplitTensors(split, cpu, resident=False)
    for number, batch in enumerate(images.blocks(batch_index.scoring(images.placement, batch_size=5, numbers=range(10)))):
        threading.Event().wait(0.01)
        assert batch.inputs[:, 0, 0, 0].tolist() == list(range(5 * number, 5 * number + 5))
