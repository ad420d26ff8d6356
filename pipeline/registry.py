"""Open families: a package in which one module is one choice, found by its file name and imported only when chosen."""

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Family:
    """The modules of `package` are the only choices there are, so a parameter file can import nothing else."""

    package: str
    noun: str
    needs_torch: bool = False
    """Whether its modules import torch, which takes seconds: their keys are judged where nothing else is wrong."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        package = importlib.import_module(self.package)
        return tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__)))

    def settings(self, name: str) -> Any:
        """The `Settings` class of the module `name`, which must be among `names`."""
        if name not in self.names:
            raise KeyError(name)
        return importlib.import_module(f"{self.package}.{name}").Settings


MODELS = Family("pipeline.models", "model", needs_torch=True)
SOURCES = Family("pipeline.sources", "dataset")
