"""Gathers what people import: `from pipeline import fit, load_model, load_ensemble` trains, and uses one model or several as one."""

from typing import Any

from pipeline.tools import tool

MODULES = {"fit": "notebook", "load_ensemble": "predict.model", "load_model": "predict.model"}


def find(name: str) -> Any:
    """Return what MODULES names, imported at its first use: a tool may have been removed, and some import torch."""
    return getattr(tool(MODULES[name]), name)
