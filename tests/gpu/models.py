"""Every model of the pipeline, and one of each library, as short trainings on small data."""

from importlib.util import find_spec
from typing import Any

import pytest

from tests import texts
from tests.laws.test_resuming import AIRBENCH, COMMON, CONVNET, MOBILENET, OF_TEXT, SEPARATE_WEIGHTS, SGD

MLP = {"name": "mlp", "weights": None, "width": 16, "depth": 2, "dropout": 0.2}
RESNET = {"name": "resnet", "weights": None, "depth": 9, "width": 16}
IMAGE_MODELS = {"mlp": MLP, "convnet": CONVNET, "resnet": RESNET, "mobilenet": MOBILENET, "airbench": AIRBENCH}
TEXT_MODELS = {
    "rnn": ("texts", texts.LSTM | {"cell": "rnn"}),
    "lstm": ("texts", texts.LSTM),
    "gru": ("texts", texts.LSTM | {"cell": "gru"}),
    "transformer": ("texts", texts.TRANSFORMER),
    "ngrams": ("texts", texts.NGRAMS),
    "language model: lstm": ("corpus", texts.LSTM_LANGUAGE_MODEL),
    "language model: transformer": ("corpus", texts.TRANSFORMER_LANGUAGE_MODEL),
}


def models_of_libraries() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return a model of timm, one of transformers, and one that LoRA trains, if the packages of locks/hub.lock are installed."""
    if not all(map(find_spec, ("timm", "transformers", "peft"))):
        return {}
    from tests.hub import models

    bert = models.section("bert")
    return {
        "timm: vit": ("large images", models.TIMM["test_vit"] | {"drop_path": 0.0}),
        "transformers: bert": ("texts", bert | {"config": bert["config"] | models.WITHOUT_DROPOUT["bert"]}),
        "transformers: llama, LoRA": ("corpus", models.section("llama", lora=True)),
    }


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: ("images", model) for name, model in IMAGE_MODELS.items()},
    **TEXT_MODELS,
    **models_of_libraries(),
}
PRECISIONS = {
    "fp32": {"train.precision": "fp32"},
    "bf16": {"train.precision": "bf16"},
    "fp16": {"train.precision": "fp16"},
    "bf16-true": {"train.precision": "bf16-true", "train.ema_decay": 0.0, "optimizer": SGD},
}
EVERY_MODEL = pytest.mark.parametrize("model", MODELS)
EVERY_PRECISION = pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", pytest.param("bf16-true", marks=SEPARATE_WEIGHTS)])


def changes_of(model: str, changes: dict[str, Any]) -> dict[str, Any]:
    kind, settings = MODELS[model]
    common = COMMON | {"train.channels_last": True} if "images" in kind else OF_TEXT
    return common | {"model": settings} | changes
