"""Count the operations of a step beyond the bare forward, backward and update. A busy machine does not change the counts."""

import math
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.core.environment import Environment
from pipeline.core.interruption import Interruption
from pipeline.core.observer import Observer
from pipeline.core.prepared import Split
from pipeline.inference.batches import loader
from pipeline.inference.batches.blocks import BlockBatch
from pipeline.runs import run as tracking
from pipeline.runs.journal import RunInfo
from pipeline.train.stage import loop
from pipeline.train.training import Training
from pipeline.train.work_folder import Work
from tests import texts
from tests.train.augment import augmenting
from tests.train.engine import building

VIEWS = {
    *("slice", "select", "split_with_sizes", "view", "alias", "detach", "as_strided"),
    *("permute", "t", "transpose", "unsqueeze", "expand", "unbind", "_unsafe_view"),
    *("empty_like", "promote_types"),
}
"""Operations that neither compute nor copy."""
CHANGES = {"train.batch_size": 16, "train.micro_batch_size": 16, "train.report_every_steps": 50, "train.validate_every_steps": 50}
AUGMENTED = {
    "augment.crop_padding": 2,
    "augment.flip": "random",
    "train.clip_norm": None,
    "train.ema_decay": 0.0,
    "loss.label_smoothing": 0.0,
}


SOME = 30
"""A number of steps without a report."""


class Operations(TorchDispatchMode):
    """Counts the operations that compute or copy, and the largest tensor that one of them made."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if name not in VIEWS:
            self.counts[name] += 1
            if isinstance(result, torch.Tensor):
                self.largest = max(self.largest, result.numel() * result.element_size())
        return result


def bare(training) -> Operations:
    """Run one step without the pipeline on a ready batch."""
    inputs, targets = next(next(training.batches(0)).parts(16))
    return bare_step(training.state.model.network, training.state.optimizer, inputs.permute(0, 3, 1, 2).float(), targets)


def bare_step(network: torch.nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, targets: torch.Tensor) -> Operations:
    with Operations() as found:
        optimizer.zero_grad()
        outputs = network(inputs).flatten(0, -2)
        loss = torch.nn.functional.cross_entropy(outputs, targets.flatten(), reduction="sum") / targets.numel()
        torch.autograd.backward(loss)
        optimizer.step()
    return found


def times(count: int, counts: Counter[str]) -> Counter[str]:
    return Counter({name: count * number for name, number in counts.items()})


def ours(training, *, steps: int = 1) -> Operations:
    reports = training.reports()
    for _ in range(2):
        next(reports)
    with Operations() as found:
        for _ in range(steps):
            next(reports)
    return found


def test_a_step_adds_few_operations_to_the_bare_one(train_params, prepared) -> None:
    """Allowed are normalisation (3), accuracy (3) and a dtype check, and once per block gather and flip (4). A launch takes microseconds on a GPU."""
    params = train_params(CHANGES | AUGMENTED)
    added = ours(building.begin(params, prepared), steps=SOME).counts - times(SOME, bare(building.begin(params, prepared)).counts)
    assert sum(added.values()) <= 7 * SOME, added


@pytest.mark.parametrize(("data", "model", "most"), [("texts", texts.LSTM, 7), ("corpus", texts.TRANSFORMER_LANGUAGE_MODEL, 9)])
def test_a_step_of_a_text_model_adds_few_operations_to_the_bare_one(train_params, data: str, model, most: int) -> None:
    """Allowed are the length of the longest text, the accuracy and a dtype check; for a language model targets, characters and bytes instead of the length."""
    changes = {**CHANGES, **texts.UNAUGMENTED, "train.clip_norm": None, "train.ema_decay": 0.0, "model": model}
    prepared = getattr(texts, data)()
    training = building.begin(train_params(changes), prepared)
    inputs, targets = next(next(training.batches(0)).parts(16))
    step = bare_step(training.state.model.network, training.state.optimizer, inputs, targets)
    added = ours(building.begin(train_params(changes), prepared), steps=SOME).counts - times(SOME, step.counts)
    assert sum(added.values()) <= most * SOME, added


@pytest.mark.parametrize("wishes", [{"train.clip_norm": 1.0}, {"train.report_every_steps": 1}], ids=str)
def test_the_norm_of_the_gradient_is_measured_where_somebody_wants_it(train_params, prepared, wishes: dict[str, float | str]) -> None:
    plain, measuring = (
        ours(building.begin(train_params(CHANGES | AUGMENTED | more), prepared), steps=SOME).counts["_foreach_norm"]
        for more in ({}, wishes)
    )
    assert (plain, measuring) == (0, SOME)


def parts_counted(batch: BlockBatch, max_size: int) -> list[int]:
    """Return the number of operations of each micro-batch."""
    counts, parts = [], batch.parts(max_size)
    for _ in range(-(-batch.num_targets // max_size)):
        with Operations() as found:
            next(parts)
        counts.append(sum(found.counts.values()))
    return counts


def test_no_micro_batch_however_augmented_takes_many_operations() -> None:
    """With every augmentation. A block is gathered once, and a batch is mixed as a whole, also if it is cut."""
    images, targets = augmenting.images(50, (8, 8, 3)).numpy(), np.arange(50) % 2
    augmentation = augmenting.augmentation(50, spec=augmenting.colour((8, 8, 3)), **augmenting.EVERYTHING)
    held = loader.SplitTensors(Split(images, targets), torch.device("cpu"), augmentation, resident=True)
    batches = loader.training(held, batch_size=16, seed=1, start=0)
    first, second, cut = (parts_counted(next(batches), max_size) for max_size in (16, 16, 8))
    assert sum(first) <= 140
    assert sum(second) <= 40
    assert sum(cut) <= 40


@pytest.mark.parametrize("batches", [0, 3])
def test_no_step_touches_more_than_its_batch_or_its_block(train_params, prepared, monkeypatch, batches: int) -> None:
    """The limit is the batch as float32, the largest weight or a block with the padding of its crops: the split is never copied."""
    limit = batches * 16 * math.prod(prepared.spec.inputs.row_shape)
    monkeypatch.setattr(loader, "BLOCK_BYTES", limit)
    training = building.begin(train_params(CHANGES | AUGMENTED), prepared)
    batch_bytes = 16 * prepared.spec.inputs.height * prepared.spec.inputs.width * prepared.spec.inputs.channels * 4
    weight_bytes = max(parameter.numel() * 4 for parameter in training.state.parameters)
    assert ours(training, steps=8).largest <= max(batch_bytes, weight_bytes, limit)


def test_a_step_opens_no_file_and_starts_no_process(train_params, prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracking is on and every step reports."""
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setenv("PIPELINE_TRACKING_WAIT_S", "0")
    training = building.begin(train_params(CHANGES | {"train.report_every_steps": 1}), prepared, tmp_path / "work")
    seen: list[str] = []
    sys.addaudithook(
        lambda event, arguments: seen.append(f"{event} {arguments[0]}") if counting and event in ("open", "subprocess.Popen") else None
    )
    counting = False

    def count_from_the_third_step_to_the_thirteenth(self: Training, environment: Environment) -> None:
        nonlocal counting
        counting = 3 <= self.state.step < 13

    monkeypatch.setattr(Training, "save_when_due", count_from_the_third_step_to_the_thirteenth)
    (tmp_path / "work").mkdir()
    with tracking.training(Environment.read(), resume_file=tmp_path / "work/run", info=RunInfo()) as run:
        observer = Observer()
        observer.step_ends = run.metrics  # type: ignore[method-assign]
        loop(training, observer, Environment.read(), Interruption(), Work(tmp_path / "work"))
    assert training.state.step > 13
    assert seen == []
