"""Registries of choices: each module of a package is one choice, found by its file name and imported only when chosen."""

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Registry:
    """The choices in `package`, one module each; a parameter file cannot cause any other module to be imported."""

    package: str
    noun: str
    needs_torch: bool = False
    """True where the modules import torch, which takes seconds: their keys are validated only where all else is valid."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        package = importlib.import_module(self.package)
        return tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__)))

    def settings(self, name: str) -> Any:
        """Return the `Settings` class of the module `name`. Raises KeyError for a name that is not in `names`."""
        if name not in self.names:
            raise KeyError(name)
        return importlib.import_module(f"{self.package}.{name}").Settings


MODELS = Registry("pipeline.models", "model", needs_torch=True)
SOURCES = Registry("pipeline.sources", "dataset")
