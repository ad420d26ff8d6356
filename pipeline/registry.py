"""Registries of choices. Each module or folder of a package is one choice; it is found by its name and imported only when chosen."""

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Registry:
    """The choices in `package`, such as the models. Each module or folder of the package is one choice.

    `noun` is the word for a choice in messages. Only the modules of this package can be imported by name. So the name of a choice may come
    from an untrusted file.
    """

    package: str
    noun: str
    needs_torch: bool = False
    """True if the modules import torch, which takes seconds. A section that chooses one is validated only if all others are valid."""
    settings_part: str | None = None
    """The module with the class `Settings`, if each choice is a folder. None if each choice is one module."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        package = importlib.import_module(self.package)
        return tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__)))

    def settings(self, name: str) -> Any:
        """Return the `Settings` class of the choice `name`. Raises KeyError for a name that is not in `names`."""
        return self.module(name, self.settings_part).Settings

    def module(self, name: str, part: str | None = None) -> Any:
        """Return the module `name`. If `part` is given, `name` is a folder, and its module `part` is returned.

        Raises KeyError for a name that is not in `names`.
        """
        if name not in self.names:
            raise KeyError(name)
        return importlib.import_module(".".join(filter(None, (self.package, name, part))))


MODELS = Registry("pipeline.models", "model", needs_torch=True)
SOURCES = Registry("pipeline.sources", "dataset")
INPUTS = Registry("pipeline.inputs", "kind of inputs")
TASKS = Registry("pipeline.tasks", "task", settings_part="settings")
