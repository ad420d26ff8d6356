"""The shares of the processes that train together are the whole batch, to the bit."""

from itertools import islice

import numpy as np
import pytest
import torch

from pipeline.core.prepared import Prepared, Split
from pipeline.inference.batch import Batch
from pipeline.inference.batches import loader
from pipeline.inference.batches.blocks import WHOLE, Share
from tests import texts
from tests.train.augment import augmenting

SIZE, NUM_BATCHES = 24, 3
CPU = torch.device("cpu")
DIVISIONS = [(1, 4), (2, 2), (3, 1)]
"""Numbers of processes, and of the lanes of each."""
PLAIN = {"crop_padding": 1, "flip": "random", "cutout": 2}
MIXED = {"resized_crop": 0.3, "flip": "alternating", "brightness": 0.2, "transforms": augmenting.SOME, "mixup": 0.8, "cutmix": 1.0}


def tensors_of(kind: str, prepared: Prepared, *, resident: bool) -> loader.SplitTensors:
    """Return images, plain or mixed, texts of many lengths, pairs of them, or windows of a corpus."""
    if kind == "texts":  # one of them is long, so that the batches without it are cut
        split = texts.texts().train
        rows = np.argsort(split.lengths, kind="stable")[[*range(30), *range(30), -1]]
        return loader.SplitTensors(Split(split.inputs[rows], split.targets[rows], split.lengths[rows]), CPU, resident=resident)
    if kind in ("corpus", "pairs"):
        return loader.SplitTensors(getattr(texts, kind)().train, CPU, resident=resident)
    wishes = {"plain": PLAIN, "mixed": MIXED}[kind]
    found = augmenting.augmentation(len(prepared.train), spec=prepared.spec, **wishes)
    return loader.SplitTensors(prepared.train, CPU, found, resident=resident)


def batches(tensors: loader.SplitTensors, share: Share = WHOLE, *, max_size: int = SIZE) -> list[tuple[list[Batch], int]]:
    """Return the micro-batches of some batches, lane by lane, and the number of targets of each batch."""
    found = loader.training(tensors, batch_size=SIZE, seed=3, start=1, share=share)
    result = [
        ([Batch(*map(torch.clone, part)) for lane in range(share.lanes) for part in batch.parts(max_size, lane)], batch.num_targets)
        for batch in islice(found, NUM_BATCHES)
    ]
    found.close()
    return result


def concatenated(parts: list[Batch]) -> Batch:
    return Batch(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


@pytest.mark.parametrize(("kind", "resident"), [("plain", True), ("mixed", False), ("texts", True), ("corpus", False), ("pairs", True)])
def test_the_shares_of_all_processes_are_the_whole_batch(prepared: Prepared, kind: str, *, resident: bool) -> None:
    """Padding is cut, and partners are mixed, as in the whole batch."""
    whole = batches(tensors_of(kind, prepared, resident=resident))
    if kind == "texts":
        assert len({part.inputs.shape[1] for parts, _ in whole for part in parts}) > 1, "otherwise nothing is seen of the padding"
    for count, lanes in DIVISIONS:
        for max_size in (SIZE, 2):
            shares = [
                batches(tensors_of(kind, prepared, resident=resident), Share(number, count, lanes), max_size=max_size)
                for number in range(count)
            ]
            for (expected, num_targets), *of_processes in zip(whole, *shares, strict=True):
                assert {found for _, found in of_processes} == {num_targets}
                together = concatenated([part for parts, _ in of_processes for part in parts])
                assert all(torch.equal(*pair) for pair in zip(concatenated(expected), together, strict=True)), (count, lanes, max_size)


@pytest.mark.parametrize(("kind", "held"), [("plain", [8, 8, 8]), ("mixed", [16, 8, 16])])
def test_a_process_reads_its_own_samples_and_their_partners_only(prepared: Prepared, kind: str, held: list[int]) -> None:
    """The partners of the middle third are in the middle third."""
    tensors = tensors_of(kind, prepared, resident=False)
    found = []
    for number in range(3):
        shares = loader.training(tensors, batch_size=SIZE, seed=3, start=0, share=Share(number, 3))
        found.append(len(next(shares).block.inputs))
        shares.close()
    assert found == held


def test_the_micro_batches_of_a_lane_have_at_most_the_size_asked_for_and_differ_by_one(prepared: Prepared) -> None:
    tensors = tensors_of("plain", prepared, resident=True)
    batch = next(loader.training(tensors, batch_size=SIZE, seed=3, start=0, share=Share(1, 2, 2)))
    assert batch.lane_size == 6
    for max_size, sizes in {6: [6], 100: [6], 4: [3, 3], 5: [3, 3], 2: [2, 2, 2], 1: [1] * 6}.items():
        assert batch.num_parts(max_size) == len(sizes)
        assert [[len(part.inputs) for part in batch.parts(max_size, lane)] for lane in range(2)] == [sizes, sizes]


@pytest.mark.parametrize(("count", "batch_size", "resident"), [(2, 16, True), (3, 7, False), (4, 50, True)])
def test_scoring_counts_each_sample_once_also_with_fewer_batches_than_processes(
    prepared: Prepared, count: int, batch_size: int, *, resident: bool
) -> None:
    tensors = loader.SplitTensors(prepared.train, CPU, resident=resident)
    shares = [
        [(batch.inputs.clone(), real) for batch, real in loader.scoring(tensors, batch_size=batch_size, share=Share(number, count))]
        for number in range(count)
    ]
    assert len({len(share) for share in shares}) == 1, "the processes gather their results, so each needs equally many"
    assert all(len(inputs) == batch_size for share in shares for inputs, _ in share)
    in_order = [inputs[:real] for of_processes in zip(*shares, strict=True) for inputs, real in of_processes]
    assert torch.equal(torch.cat(in_order), torch.from_numpy(prepared.train.inputs))
