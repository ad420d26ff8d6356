"""A reproducible training pipeline: prepare, train, evaluate. `from pipeline import fit, load_model` trains and uses a model."""

from importlib import import_module
from typing import Any

__all__ = ["fit", "load_model"]
MODULES = {"fit": "notebook", "load_model": "predict.model"}


def __getattr__(name: str) -> Any:
    """Return `fit` or `load_model`, imported only at its first use: every stage imports this package, and no stage needs them."""
    if name in MODULES:
        return getattr(import_module("pipeline.tools").tool(MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
