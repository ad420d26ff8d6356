"""Batches of language models: windows of one sequence of tokens, whose targets are the tokens that follow; pairs of texts; the order of samples."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.prepared import Split
from pipeline.inference.batch import IGNORED, Batch
from pipeline.inference.batches import loader
from pipeline.inference.batches.batch_index import Order
from tests import texts

LENGTH, NUM_ROWS = 5, 7
TOTAL = LENGTH * NUM_ROWS
CPU = torch.device("cpu")


def tensors(tokens: np.ndarray, *, resident: bool) -> loader.SplitTensors:
    rows = tokens.astype(np.int32).reshape(-1, LENGTH)
    return loader.SplitTensors(Split(rows, np.zeros((len(rows), 0), np.uint8), None, windows=True), CPU, resident=resident)


def test_each_token_is_once_an_input_and_once_a_target_in_every_epoch() -> None:
    batches = loader.training(tensors(np.arange(3, 3 + TOTAL), resident=True), batch_size=1, seed=4, start=0)
    for _ in range(3):
        parts = [Batch(*(tensor.clone() for tensor in next(next(batches).parts(1)))) for _ in range(NUM_ROWS)]
        for part in parts:
            assert part.targets is not None
            assert part.targets.dtype == torch.int64
            assert torch.equal(part.targets, (part.inputs.long() - 3 + 1) % TOTAL + 3), (
                "the target is the next token; the last one's is the first"
            )
        assert sorted(torch.cat([part.inputs for part in parts]).flatten().tolist()) == list(range(3, 3 + TOTAL))
    batches.close()


def test_scoring_covers_each_token_once_from_the_first_row_on_and_ignores_padding() -> None:
    tokens = np.concatenate([np.arange(3, 3 + TOTAL - 2), [0, 0]])
    batches = list(loader.scoring(tensors(tokens, resident=False), batch_size=3))
    assert [real for _, real in batches] == [3, 3, 1]
    targets = torch.cat([batch.targets[:real].flatten() for batch, real in batches if batch.targets is not None])
    assert targets.tolist() == [*range(4, 3 + TOTAL - 2), IGNORED, IGNORED, IGNORED]


def test_resident_and_streamed_windows_are_equal_whatever_the_micro_batch() -> None:
    tokens = np.random.default_rng(0).integers(1, 60, TOTAL)
    found = []
    for resident, max_size in ((True, 4), (True, 1), (False, 4), (False, 3)):
        batches = loader.training(tensors(tokens, resident=resident), batch_size=4, seed=9, start=2)
        whole = [[torch.cat(tensors) for tensors in zip(*next(batches).parts(max_size), strict=True)] for _ in range(6)]
        batches.close()
        found.append(whole)
    for other in found[1:]:
        assert all(torch.equal(a, b) for one, two in zip(found[0], other, strict=True) for a, b in zip(one, two, strict=True))


def test_padding_is_cut_off_after_the_longest_text_of_the_whole_batch() -> None:
    lengths = np.array([3, 9, 1, 40, 2, 17, 5, 8])
    rows = (np.arange(40) < lengths[:, None]).astype(np.int32)
    split = Split(rows, np.arange(8), lengths)
    batches = loader.training(loader.SplitTensors(split, CPU, resident=False), batch_size=2, seed=3, start=0)
    widths = set()
    for _ in range(12):
        batch = next(batches)
        parts = list(batch.parts(1))
        longest = max(int(lengths[part.targets]) for part in parts)
        assert {part.inputs.shape[1] for part in parts} == {-(-longest // 5) * 5}, "of at most 8 lengths"
        assert all(int(part.inputs.sum()) == int(lengths[part.targets]) for part in parts)
        widths.add(parts[0].inputs.shape[1])
    batches.close()
    assert len(widths) > 1
    (first, _), *_ = loader.scoring(loader.SplitTensors(split, CPU, resident=True), batch_size=3)
    assert first.inputs.shape == (3, 10)


def read(order: Order, start: int, count: int) -> torch.Tensor:
    return torch.cat([order.permutation(epoch)[positions] for epoch, positions in order.windows(start, count)])


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 3))
def test_batches_of_any_size_read_every_epoch_whole(num_samples: int, batch_size: int, seed: int) -> None:
    order = Order(num_samples, seed)
    stream = torch.cat([read(order, step * batch_size, batch_size) for step in range(3 * num_samples)])
    assert len(stream) == 3 * num_samples * batch_size
    for epoch in range(len(stream) // num_samples):
        assert sorted(stream[epoch * num_samples : (epoch + 1) * num_samples].tolist()) == list(range(num_samples))


SIZE = 8


def test_the_targets_are_the_tokens_of_the_target_text_after_the_first() -> None:
    data = texts.pairs()
    split, pairs = data.train, data.spec.inputs
    tensors = loader.SplitTensors(split, torch.device("cpu"))
    seen = 0
    for batch, real in loader.scoring(tensors, batch_size=SIZE):
        sources, targets = pairs.texts(batch.inputs)
        widest = pairs.lengths(split.inputs[seen : seen + real]).max()
        assert batch.inputs.shape[1] == widest, "a piece that has only padding was not cut off"
        for source, target, found in zip(sources[:real], targets[:real], batch.targets[:real], strict=True):
            letters = source[source != pairs.pad].tolist()
            assert target[target != pairs.pad].tolist() == [2, *reversed(letters), 2]
            assert found[found != IGNORED].tolist() == [*reversed(letters), 2]
        seen += real
    assert seen == len(split)
