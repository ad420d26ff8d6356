"""Small text models of every kind, and texts for them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.core import seeding
from pipeline.core.registry import MODELS
from pipeline.core.spec import Spec
from pipeline.core.tokenizer_description import AnyDescription
from tests.specs import text_spec

RECURRENT = {"name": "recurrent", "weights": None, "cell": "lstm", "embedding_width": 6, "width": 6, "depth": 2, "dropout": 0.0}
TRANSFORMER = {"name": "transformer", "weights": None, "width": 16, "depth": 2, "heads": 2, "mlp_ratio": 2.0, "dropout": 0.0}
ENCODING = {"tied_embeddings": False}
CLASSIFIERS: list[dict[str, Any]] = [
    *(RECURRENT | ENCODING | {"cell": cell, "bidirectional": True, "pooling": "last"} for cell in ("rnn", "lstm", "gru")),
    RECURRENT | ENCODING | {"bidirectional": False, "pooling": "last", "embedding_width": 3},
    RECURRENT | ENCODING | {"bidirectional": True, "pooling": "mean"},
    TRANSFORMER | ENCODING | {"positions": "rotary", "activation": "gelu", "pooling": "mean"},
    TRANSFORMER | ENCODING | {"positions": "learned", "activation": "swiglu", "pooling": "first"},
]
LANGUAGE_MODELS: list[dict[str, Any]] = [
    *(RECURRENT | {"cell": cell, "bidirectional": False, "pooling": None, "tied_embeddings": True} for cell in ("rnn", "lstm", "gru")),
    RECURRENT | {"bidirectional": False, "pooling": None, "tied_embeddings": False, "embedding_width": 3},
    TRANSFORMER | {"positions": "rotary", "activation": "swiglu", "pooling": None, "tied_embeddings": True},
    TRANSFORMER | {"positions": "learned", "activation": "gelu", "pooling": None, "tied_embeddings": False},
]
NGRAMS: dict[str, Any] = {"name": "ngrams", "weights": None, "width": 6, "max_n": 3, "buckets": 50, "dropout": 0.0}
CLASSES = ("a", "b", "c")
CPU = torch.device("cpu")


def title(settings: dict[str, Any]) -> str:
    """Return the values of the settings that are words."""
    return "-".join(value for value in settings.values() if isinstance(value, str))


def spec_for(settings: dict[str, Any], length: int = 12, tokenizer: AnyDescription | None = None) -> Spec:
    return text_spec(length=length, classes=CLASSES if settings.get("pooling", True) else None, tokenizer=tokenizer)


def build(settings: dict[str, Any], *, length: int = 12, seed: int = 1, tokenizer: AnyDescription | None = None) -> nn.Module:
    """Return the network, initialised for one seed, in float32 and in training mode. Vectors that begin at zero are drawn, as if trained."""
    seeding.reseed(CPU, seed, "weights")
    network: nn.Module = MODELS.settings(settings["name"])(**settings).build(spec_for(settings, length, tokenizer))
    if settings["name"] == "ngrams":
        nn.init.normal_(network.get_parameter("embedding.weight"))
    return network


def texts(lengths: Sequence[int], *, padded_to: int, seed: int = 1) -> Tensor:
    """Return random texts of these lengths as rows of tokens (n, padded_to), int32."""
    tokens = torch.randint(3, 11, (len(lengths), padded_to), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)
    return tokens.where(torch.arange(padded_to) < torch.tensor(lengths)[:, None], 0)
