"""Imports a library of the extra `hub`, which models need beyond requirements.lock."""

import importlib
from importlib import metadata
from typing import Any

from pipeline.core.refusal import Refusal


def library(name: str, version: str, place: str = "") -> Any:
    """Return the module `name`. Raises Refusal if it is not installed, or has another version than `version`, which decides results.

    The message begins with `place`, such as `model.name: `. A validator needs none, because pydantic names the parameter.
    """
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        found = "none"
    if found != version:
        raise Refusal(f"{place}this model needs {name} {version}, but {found} is installed: run `make setup-hub`")
    return importlib.import_module(name)
