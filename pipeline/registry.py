"""Registries of choices: each module or folder of a package is one choice, found by its name and imported only when chosen."""

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Registry:
    """The choices in `package`, one module or folder each; `noun` is the word for a choice in messages.

    A name from an untrusted file can only import one of these modules.
    """

    package: str
    noun: str
    needs_torch: bool = False
    """True if the modules import torch, which takes seconds. Sections with these choices are validated only if all others are valid."""
    settings_part: str | None = None
    """The module with the class `Settings`, if each choice is a folder; None if each choice is one module."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        package = importlib.import_module(self.package)
        return tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__)))

    def settings(self, name: str) -> Any:
        """Return the `Settings` class of the choice `name`. Raises KeyError for a name that is not in `names`."""
        return self.module(name, self.settings_part).Settings

    def module(self, name: str, part: str | None = None) -> Any:
        """Return the module `name`, or the module `part` of the folder `name`. Raises KeyError for a name that is not in `names`."""
        if name not in self.names:
            raise KeyError(name)
        return importlib.import_module(".".join(filter(None, (self.package, name, part))))


MODELS = Registry("pipeline.models", "model", needs_torch=True)
SOURCES = Registry("pipeline.sources", "dataset")
INPUTS = Registry("pipeline.inputs", "kind of inputs")
TASKS = Registry("pipeline.tasks", "task", settings_part="settings")
