"""A training whose data does not fit on the device ends in the same bytes as one whose data does."""

import threading
from pathlib import Path

import pytest
import torch

from pipeline.inference.batches import loader
from tests import texts
from tests.faults import test_memory, test_numbers
from tests.faults.test_memory import STEP, Shortage
from tests.laws.test_resuming import COMMON, CONVNET, OF_TEXT, stopped_at
from tests.train.engine.building import begin, run, same

CHANGES = {**COMMON, "model": CONVNET}


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch):
    """Return a function after whose call no data fits on the device."""
    return lambda: monkeypatch.setattr(loader, "RESIDENT_SHARE", 0.0)


def readers() -> int:
    return sum(thread.name.startswith("reader") for thread in threading.enumerate())


OF_KIND = {
    "images": CHANGES,
    "texts": {**OF_TEXT, "model": texts.LSTM, "train.batch_size": 7},
    "corpus": {**OF_TEXT, "model": texts.TRANSFORMER_LANGUAGE_MODEL, "train.batch_size": 7},
}


@pytest.mark.parametrize("kind", OF_KIND)
def test_what_is_read_ahead_gives_the_same_bytes_after_a_stop_too(train_params, prepared, tmp_path: Path, ahead, kind: str) -> None:
    params, prepared = train_params(OF_KIND[kind]), prepared if kind == "images" else getattr(texts, kind)()
    whole = begin(params, prepared)
    run(whole)
    ahead()
    resumed = stopped_at(params, prepared, tmp_path, (2, 5, 6))
    assert whole.train_split.resident
    assert not resumed.train_split.resident
    assert same(whole.state.tensors(), resumed.state.tensors())
    assert whole.progress.rows == resumed.progress.rows
    assert readers() == 0


def test_a_step_that_runs_out_of_memory_reads_the_same_batch_again(train_params, prepared, monkeypatch, ahead) -> None:
    params = train_params(CHANGES)
    whole = test_memory.with_micro_batch_changes(params, prepared, (STEP, 3))
    ahead()
    training = begin(params, prepared)
    shortage = Shortage(training, monkeypatch, where="backward", call=1)
    run(training)
    assert shortage.times == 0
    assert same(whole.state.tensors(), training.state.tensors())


def test_the_batch_of_a_skipped_step_is_read_beside_the_next_ones(train_params, prepared, monkeypatch, ahead, tmp_path: Path) -> None:
    params = train_params({**test_numbers.CHANGES, "train.on_nonfinite": "skip"})
    found = []
    for _ in range(2):
        with monkeypatch.context() as patch:
            training = begin(params, prepared, tmp_path)
            test_numbers.spoil(training, patch)
            run(training)
        found.append(training)
        ahead()
    assert same(*(training.state.tensors() for training in found))
    assert readers() == 0


def test_no_reader_outlives_a_step_that_fails(train_params, prepared, monkeypatch, ahead) -> None:
    ahead()
    training = begin(train_params(CHANGES), prepared)
    reports = training.reports()
    next(reports)
    assert readers() == 1

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("of a defect")

    monkeypatch.setattr(torch.autograd, "backward", fail)
    with pytest.raises(RuntimeError, match="of a defect"):
        list(reports)
    assert readers() == 0
