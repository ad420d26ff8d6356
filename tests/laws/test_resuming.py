"""A training that is stopped at any step resumes to the same bytes, with every feature that has a state.

`make test` stops each after some steps, which are before and after the first validation, and `make test-slow` after every one.
"""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import torch

from pipeline.core.environment import Environment
from tests import texts
from tests.train.engine.building import begin, same

EVERY_STEP = Environment(PIPELINE_CHECKPOINT_EVERY_STEPS=1, PIPELINE_CHECKPOINT_EVERY_S=0)
STEPS = 9
COMMON = {
    "train.epochs": None,
    "train.steps": STEPS,
    "train.batch_size": 16,
    "train.micro_batch_size": 6,
    "train.report_every_steps": 2,
    "train.validate_every_steps": 4,
    "train.ema_decay": 0.9,
    "train.export_weights": "best",
    "augment.flip": "random",
    "augment.cutout": 2,
}
CONVNET = {"name": "convnet", "weights": None, "width": 4, "dropout": 0.2}
AIRBENCH = {
    "name": "airbench",
    "weights": None,
    "block1_width": 8,
    "block2_width": 16,
    "block3_width": 16,
    "whiten_images": 20,
    "whiten_eps": 5e-4,
}
MOBILENET = {"name": "torchvision", "weights": None, "architecture": "mobilenet_v3_small", "stem": "small", "pretrained": None}
OPTIMIZER = {"learning_rate": 0.05, "weight_decay": 1e-3, "bias_lr_scale": 0.5, "layer_decay": None, "groups": []}
SGD = {"name": "sgd", **OPTIMIZER, "momentum": 0.9, "nesterov": True}
NO_MOMENTUM = {**SGD, "momentum": 0.0, "nesterov": False}
ADAM = {"name": "adam", **OPTIMIZER, "learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8}
MUON = {**SGD, "name": "muon", "outer_lr_scale": 0.5, "momentum": 0.6, "sgd_momentum": 0.9, "ns_steps": 3, "normalize_weights": True}
BF16_TRUE = {"train.precision": "bf16-true", "train.ema_decay": 0.0}
GROUPED = {
    "optimizer.layer_decay": 0.75,
    "optimizer.groups": [
        {"patterns": ["8.*"], "lr_scale": 2.0, "weight_decay": 0.1},
        {"patterns": ["2.0.*", "*.bias"], "lr_scale": 0.5, "weight_decay": None},
    ],
}
VARIANTS = {
    "adamw": {"model": CONVNET},
    "muon": {"model": CONVNET, "optimizer": MUON},
    "fp16 with its scaler": {"model": {"name": "mlp", "weights": None, "width": 16, "depth": 2, "dropout": 0.2}, "train.precision": "fp16"},
    "activation checkpointing": {"model": CONVNET, "train.activation_checkpointing": True},
    "bf16-true": {"model": AIRBENCH, "optimizer": MUON, **BF16_TRUE},
    "bf16-true with sgd": {"model": CONVNET, "optimizer": SGD, **BF16_TRUE},
    "airbench": {"model": AIRBENCH, "optimizer": MUON, "loss.label_smoothing": 0.2},
    "frozen, in groups": {"model": CONVNET, "train.freeze": ["0.*"], **GROUPED},
    "mobilenet": {"model": MOBILENET},
    "mixed samples": {
        "model": CONVNET,
        "augment.crop_padding": 0,
        "augment.resized_crop": 0.3,
        "augment.mixup": 0.4,
        "augment.cutmix": 1.0,
    },
    "transforms": {
        "model": CONVNET,
        "augment.transforms": [{"name": "trivial_augment"}, {"name": "random_erasing", "probability": 0.5, "area": 0.3}],
    },
    "no average, last weights": {"model": CONVNET, "train.ema_decay": 0.0, "train.export_weights": "last"},
}

OF_TEXT = {name: value for name, value in COMMON.items() if not name.startswith("augment.")} | texts.UNAUGMENTED
TEXT_VARIANTS = {
    "lstm": ("texts", {"model": texts.LSTM}),
    "ngrams": ("texts", {"model": texts.NGRAMS}),
    "token dropout": ("texts", {"model": texts.NGRAMS, "augment": {"transforms": [{"name": "token_dropout", "probability": 0.2}]}}),
    "pretrained tokenizer: lstm": ("pretrained_texts", {"model": texts.LSTM}),
    "pretrained tokenizer: language model": (
        "pretrained_corpus",
        {"model": texts.TRANSFORMER_LANGUAGE_MODEL, "train.metric": "valid/bits_per_byte"},
    ),
    "transformer": ("texts", {"model": texts.TRANSFORMER, "loss.label_smoothing": 0.1, "train.metric": "valid/accuracy"}),
    "language model: lstm": ("corpus", {"model": texts.LSTM_LANGUAGE_MODEL, "train.metric": "valid/bits_per_byte"}),
    "language model: rnn in bf16-true": ("corpus", {"model": texts.LSTM_LANGUAGE_MODEL | {"cell": "rnn"}, "optimizer": SGD, **BF16_TRUE}),
    "language model: transformer": ("corpus", {"model": texts.TRANSFORMER_LANGUAGE_MODEL, "train.metric": "valid/perplexity"}),
    "pairs: transformer": ("pairs", {"model": texts.ENCODER_DECODER, "loss.label_smoothing": 0.1, "train.metric": "valid/perplexity"}),
}


def outcome(training) -> tuple:
    progress = training.progress
    return progress.rows, progress.best_step, progress.best_value, progress.stale


def stopped_at(params, prepared, folder: Path, stops: Iterable[int]) -> object:
    """Train and resume at each of the steps in turn, with nothing but the checkpoint."""
    for stop in itertools.chain(stops, [STEPS]):
        training = begin(params, prepared, folder)
        for report in training.reports():
            training.save_when_due(EVERY_STEP)
            if report.step >= stop:
                break
        training.saver.wait()
    return training


SOME_STEPS, EVERY = (1, 5, 6), range(1, STEPS)
STOPS = pytest.mark.parametrize("stops", [SOME_STEPS, pytest.param(EVERY, marks=pytest.mark.slow)], ids=["some", "every"])


@STOPS
@pytest.mark.parametrize(
    "changes",
    [pytest.param(changes, id=name, marks=[pytest.mark.slow] if name == "mobilenet" else []) for name, changes in VARIANTS.items()],
)
def test_a_run_stopped_at_any_step_ends_in_the_same_bytes(train_params, prepared, tmp_path: Path, changes, stops: Sequence[int]) -> None:
    refuse_another_end(train_params({**COMMON, **changes}), prepared, tmp_path, stops)


SEPARATE_WEIGHTS = pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk")
"""cuDNN copies the bf16 weights of a cell at each call, because `flatten_parameters` of torch leaves them as they are."""


@SEPARATE_WEIGHTS
@STOPS
@pytest.mark.parametrize(("data", "changes"), TEXT_VARIANTS.values(), ids=TEXT_VARIANTS)
def test_a_text_model_stopped_at_any_step_ends_in_the_same_bytes(
    train_params, tmp_path: Path, data: str, changes, stops: Sequence[int]
) -> None:
    refuse_another_end(train_params({**OF_TEXT, **changes}), getattr(texts, data)(), tmp_path, stops)


def refuse_another_end(params, prepared, folder: Path, stops: Iterable[int] = SOME_STEPS) -> None:
    """Train at once and with a stop after each of these steps, and compare the ends."""
    whole = begin(params, prepared)
    list(whole.reports())
    assert_same_end(whole, stopped_at(params, prepared, folder, stops))


def assert_same_end(whole, resumed) -> None:
    """Compare everything that two trainings export or resume."""
    (weights, step), (resumed_weights, resumed_step) = whole.exported(), resumed.exported()
    assert step == resumed_step
    assert same(weights, resumed_weights)
    assert same(whole.state.tensors(), resumed.state.tensors())
    assert outcome(whole) == outcome(resumed)
    assert whole.state.scalars() == resumed.state.scalars()


OPTIMIZERS = {"adamw": ({}, True), "adam": ({"optimizer": ADAM}, False), "muon": ({"optimizer": MUON}, False)}
OPTIMIZERS |= {"sgd": ({"optimizer": SGD}, True), "sgd without momentum": ({"optimizer": NO_MOMENTUM}, False)}


@pytest.mark.parametrize(("changes", "fused"), OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_every_optimizer_resumes_with_channels_last(train_params, prepared, tmp_path: Path, monkeypatch, changes, fused: bool) -> None:
    """Fused or not."""
    for name in ("SGD", "Adam", "AdamW"):
        build = getattr(torch.optim, name)
        monkeypatch.setattr(torch.optim, name, lambda *groups, build=build, **settings: build(*groups, **{**settings, "fused": fused}))
    params = train_params({**COMMON, "model": CONVNET, "train.channels_last": True, **changes})
    whole = begin(params, prepared)
    list(whole.reports())
    resumed = stopped_at(params, prepared, tmp_path, (3, 6))
    assert all(group.get("fused", fused) is fused for group in resumed.state.optimizer.param_groups)
    assert same(whole.state.tensors(), resumed.state.tensors())
