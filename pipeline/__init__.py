"""A reproducible training pipeline: prepare, train, evaluate. `pipeline.api` has what people import from here."""

from importlib import import_module
from typing import Any

__all__ = ["fit", "load_ensemble", "load_model"]


def __getattr__(name: str) -> Any:
    """Return a name of `__all__`, imported only at its first use: every stage imports this package, and no stage needs them."""
    if name in __all__:
        return import_module("pipeline.api").find(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
