"""A reproducible training pipeline: prepare, train, evaluate. `from pipeline import fit, load_model, load_ensemble` trains, and uses one model or several as one."""

from importlib import import_module
from typing import Any

MODULES = {"fit": "notebook", "load_ensemble": "predict.model", "load_model": "predict.model"}
__all__ = ["fit", "load_ensemble", "load_model"]


def __getattr__(name: str) -> Any:
    """Return a name of `__all__`, imported only at its first use: every stage imports this package, and no stage needs them."""
    if name in MODULES:
        return getattr(import_module("pipeline.tools").tool(MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
