"""The tests of resuming find faults: each dropped or stale field of the resume state and each faulty way to resume changes the outcome."""

import copy
import itertools
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.inference import tensor_file
from pipeline.inference.batches import batch_index, loader
from pipeline.inference.tensor_file import Tensors
from pipeline.train.engine import state as state_module
from pipeline.train.engine import update
from pipeline.train.engine.metrics import StepMetrics
from pipeline.train.engine.state import TrainState
from pipeline.train.training import Training
from tests import texts
from tests.laws.test_resuming import COMMON, CONVNET, EVERY_STEP, OF_TEXT, SGD, outcome
from tests.train.engine.building import HERE, begin, run, same

STOP = 5
FP16 = {"model": {"name": "mlp", "weights": None, "width": 16, "depth": 2, "dropout": 0.2}, "train.precision": "fp16"}
MAKE: dict[str, dict[str, Any]] = {"convnet": {**COMMON, "model": CONVNET}, "fp16": {**COMMON, **FP16}}


def equal(one: Training, other: Training) -> bool:
    """Compare what the tests of resuming compare."""
    best = (one.progress.best or {}, other.progress.best or {})
    return (
        same(one.state.tensors(), other.state.tensors())
        and same(*best)
        and outcome(one) == outcome(other)
        and one.state.scalars() == other.state.scalars()
        and one.progress.scalars() == other.progress.scalars()
    )


def interrupted(params, prepared, folder: Path, *, spoil: Callable[[Path, Path], None] | None = None) -> Training:
    """Train to STOP, optionally spoil the newest of two checkpoints with fields of the older one, and resume to the end."""
    training = begin(params, prepared, folder)
    for _ in itertools.islice(training.reports(), STOP):
        training.save_when_due(EVERY_STEP)
    training.saver.wait()
    older, newest = training.saver.checkpoints.paths()
    if spoil:
        spoil(older, newest)
    again = begin(params, prepared, folder)
    assert again.state.step in (STOP - 1, STOP)
    run(again)
    return again


def stale(*places: str) -> Callable[[Path, Path], None]:
    """Return a function that copies fields of the older checkpoint into the newest one: `state.step`, or tensors such as `optimizer/*exp_avg`."""

    def spoil(older: Path, newest: Path) -> None:
        (old_tensors, old), (tensors, metadata) = tensor_file.load(older), tensor_file.load(newest)
        for place in places:
            if "." in place:
                section, key = place.split(".")
                assert metadata[section][key] != old[section][key], f"{place} did not change: the mutant is none"
                metadata[section][key] = old[section][key]
            else:
                exchange(place, tensors, old_tensors)
        tensor_file.save(newest, tensors, metadata)

    return spoil


def exchange(place: str, tensors: Tensors, old: Tensors) -> None:
    prefix, _, ending = place.partition("*")
    chosen = [name for name in tensors if name.startswith(prefix) and name.endswith(ending)]
    assert any(name not in old or not torch.equal(tensors[name], old[name]) for name in chosen), (
        f"{place} did not change: the mutant is none"
    )
    for name in chosen:
        tensors[name] = old.get(name, torch.zeros_like(tensors[name]))


def dropped(place: str) -> Callable[[Path, Path], None]:
    """Return a function that removes tensors, or resets a scalar to its initial value."""
    beginning = {"rows": [], "switches": [], "best_value": None, "best_step": None, "stale": 0, "num_targets": 0}

    def spoil(_: Path, newest: Path) -> None:
        tensors, metadata = tensor_file.load(newest)
        if "." in place:
            section, key = place.split(".")
            assert metadata[section][key] != beginning[key], f"{place} is as in the beginning: the mutant is none"
            metadata[section][key] = beginning[key]
        else:
            prefix, _, ending = place.partition("*")
            gone = [name for name in tensors if name.startswith(prefix) and name.endswith(ending)]
            assert gone, place
            tensors = {name: tensor for name, tensor in tensors.items() if name not in gone}
        tensor_file.save(newest, tensors, metadata)

    return spoil


FIELDS = {
    "stale weights": ("convnet", stale("network/*weight")),
    "stale statistics of BatchNorm": ("convnet", stale("network/*running_mean", "network/*running_var")),
    "stale counter of BatchNorm": ("convnet", stale("network/*num_batches_tracked")),
    "stale average": ("convnet", stale("average/*weight")),
    "stale first moment": ("convnet", stale("optimizer/*exp_avg")),
    "stale second moment": ("convnet", stale("optimizer/*exp_avg_sq")),
    "stale step of the optimizer": ("convnet", stale("optimizer/*step")),
    "no optimizer": ("convnet", dropped("optimizer/*")),
    "stale step": ("convnet", stale("state.step")),
    "stale scale": ("fp16", stale("state.scaler")),
    "stale losses of the window": ("convnet", stale("window/*loss")),
    "stale answers of the window": ("convnet", stale("window/*correct")),
    "no window": ("convnet", dropped("window/*")),
    "stale count of the window": ("convnet", stale("progress.num_targets")),
    "no history": ("convnet", dropped("progress.rows")),
    "no best weights": ("convnet", dropped("best/*")),
    "no best value": ("convnet", dropped("progress.best_value")),
    "no best step": ("convnet", dropped("progress.best_step")),
}


@pytest.mark.parametrize("variant", [pytest.param("convnet", marks=pytest.mark.slow), "fp16"])
def test_each_field_that_is_stale_or_missing_is_noticed(train_params, prepared, tmp_path: Path, variant: str) -> None:
    params = train_params({**MAKE[variant], "train.report_every_steps": 3, "train.validate_every_steps": 3})
    whole = begin(params, prepared)
    run(whole)
    assert equal(whole, interrupted(params, prepared, tmp_path / "sound"))
    unnoticed = []
    for name, spoil in {name: spoil for name, (of, spoil) in FIELDS.items() if of == variant}.items():
        with suppress(KeyError, RuntimeError, ZeroDivisionError):  # a crash is noticed too
            if equal(whole, interrupted(params, prepared, tmp_path / name, spoil=spoil)):
                unnoticed.append(name)
    assert unnoticed == []


def forget_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    restore = state_module.Progress.restore

    def forgetting(self, tensors, scalars, device) -> None:
        restore(self, tensors, {**scalars, "micro_batch_size": 6}, device)

    monkeypatch.setattr(state_module.Progress, "restore", forgetting)


def draw_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let dropout draw from a generator whose state is not saved."""
    monkeypatch.setattr(update, "reseed", lambda *_: None)


def begin_the_data_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    training = loader.training
    monkeypatch.setattr(loader, "training", lambda images, **settings: training(images, **{**settings, "start": 0}))


def read_memory_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore optimizer state in the file's memory format, although a channels_last parameter has another one."""
    monkeypatch.setattr(state_module, "like", lambda parameter, value: value.to(parameter.device, copy=True))


def keep_no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepMetrics, "restore", lambda *_: None)


def copy_when_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save tensors that the loop changes before they are written."""
    monkeypatch.setattr("pipeline.train.engine.checkpoint.host_copies", lambda tensors, **_: dict(tensors))
    save, late = tensor_file.save, []

    def saving(path: Path, tensors: Tensors, metadata) -> None:
        late.append((path, tensors, copy.deepcopy(metadata)))
        if len(late) > 1:
            save(*late[-2])

    monkeypatch.setattr(tensor_file, "save", saving)


def restore_no_scaler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.amp.GradScaler, "load_state_dict", lambda *_: None)


def restore_no_average(monkeypatch: pytest.MonkeyPatch) -> None:
    restore = TrainState.restore

    def restoring(self, tensors, scalars) -> None:
        average, self.ema = self.ema, None
        restore(self, tensors, scalars)
        self.ema = average

    monkeypatch.setattr(TrainState, "restore", restoring)


def draw_the_windows_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the windows of an epoch begin where a generator says whose state is not saved."""
    drawn = itertools.count(1)
    monkeypatch.setattr(batch_index, "derive", lambda *_: next(drawn))


WAYS = {
    "the micro-batch that fitted is forgotten": ({**MAKE["convnet"]}, forget_switches, ((3, 3),)),
    "dropout draws on": (MAKE["convnet"], draw_on, ()),
    "the data begins anew": (MAKE["convnet"], begin_the_data_anew, ()),
    "memory order is lost": ({**MAKE["convnet"], "optimizer": SGD, "train.channels_last": True}, read_memory_in_order, ()),
    "the window is lost": ({**MAKE["convnet"], "train.report_every_steps": 3, "train.validate_every_steps": 3}, keep_no_window, ()),
    "the copy is made too late": (MAKE["convnet"], copy_when_written, ()),
    "the scaler begins anew": (MAKE["fp16"], restore_no_scaler, ()),
    "the average begins anew": (MAKE["convnet"], restore_no_average, ()),
}
TEXT_WAYS = {
    "lstm: dropout draws on": ("texts", texts.LSTM, draw_on),
    "lstm: the data begins anew": ("texts", texts.LSTM, begin_the_data_anew),
    "language model: dropout draws on": ("corpus", texts.TRANSFORMER_LANGUAGE_MODEL, draw_on),
    "language model: the data begins anew": ("corpus", texts.TRANSFORMER_LANGUAGE_MODEL, begin_the_data_anew),
    "language model: the windows draw on": ("corpus", texts.LSTM_LANGUAGE_MODEL, draw_the_windows_on),
}


@pytest.mark.slow
@pytest.mark.parametrize(("data", "model", "mutate"), TEXT_WAYS.values(), ids=TEXT_WAYS)
def test_a_careless_way_to_go_on_with_texts_is_noticed(train_params, tmp_path: Path, monkeypatch, data: str, model, mutate) -> None:
    params, prepared = train_params({**OF_TEXT, "model": model}), getattr(texts, data)()
    whole = begin(params, prepared)
    run(whole)
    mutate(monkeypatch)
    assert not equal(whole, interrupted(params, prepared, tmp_path))


@pytest.mark.parametrize("name", WAYS)
def test_a_careless_way_to_go_on_is_noticed(train_params, prepared, tmp_path: Path, monkeypatch, name: str) -> None:
    changes, mutate, micro_batch_changes = WAYS[name]
    params = train_params(changes)
    whole = begin(params, prepared)
    whole.plan.micro_batch_changes.update(dict(micro_batch_changes))
    run(whole)
    training = begin(params, prepared, tmp_path)
    training.plan.micro_batch_changes.update(dict(micro_batch_changes))
    mutate(monkeypatch)
    for _ in itertools.islice(training.reports(), STOP):
        training.save_when_due(EVERY_STEP)
    training.saver.wait()
    again = begin(params, prepared, tmp_path)
    # the fused SGD of a GPU refuses momentum in another memory order than the weights
    with suppress(RuntimeError) if name == "memory order is lost" and HERE.device.type == "cuda" else nullcontext():
        run(again)
    assert not equal(whole, again)
