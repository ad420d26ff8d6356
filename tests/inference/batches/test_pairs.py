"""Batches of pairs of texts: targets without padding, cut alike and counted alike in every process."""

import torch

from pipeline.inference.batch import IGNORED, num_targets
from pipeline.inference.batches import loader
from pipeline.inference.batches.blocks import Share
from tests import texts

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


def test_processes_cut_and_count_like_one() -> None:
    tensors = loader.SplitTensors(texts.pairs().train, torch.device("cpu"))

    def first_batches(number: int, count: int) -> list:
        batches = loader.training(tensors, batch_size=SIZE, seed=1, start=0, share=Share(number, count))
        found = [next(batches) for _ in range(12)]
        batches.close()
        return found

    for whole, *parts in zip(first_batches(0, 1), first_batches(0, 2), first_batches(1, 2), strict=True):
        made = [next(part.parts(SIZE)) for part in parts]
        expected = next(whole.parts(SIZE))
        assert torch.equal(torch.cat([part.inputs for part in made]), expected.inputs)
        assert torch.equal(torch.cat([part.targets for part in made]), expected.targets)
        assert {part.num_targets for part in parts} == {whole.num_targets} == {int(num_targets(expected.targets))}
