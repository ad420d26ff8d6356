"""A reproducible training pipeline: prepare, train, evaluate. `from pipeline import load_model` uses a trained model."""

from importlib import import_module
from typing import Any

__all__ = ["load_model"]


def __getattr__(name: str) -> Any:
    """Return `load_model`, imported only at its first use: every stage imports this package, and no stage needs `load_model`."""
    if name in __all__:
        return getattr(import_module("pipeline.tools").tool("predict.model"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
