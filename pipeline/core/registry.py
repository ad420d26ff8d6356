"""Registries of choices. Each module of a package is one choice; it is found by its name and imported only when chosen."""

import importlib
import pkgutil
import traceback
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args, get_origin

from pipeline.core import untrusted
from pipeline.core.refusal import Refusal


@dataclass(frozen=True)
class Registry:
    """The choices in `package`, such as the models. Each module of the package is one choice.

    `noun` is the word for a choice in messages. Only the modules of this package can be imported by name. So the name of a choice may come
    from an untrusted file.
    """

    package: str
    noun: str
    needs_torch: bool = False
    """True if the modules import torch, which takes seconds. A section that chooses one is validated only if all others are valid."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        package = importlib.import_module(self.package)
        return tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__)))

    def known(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return `names`, each once. Raises ValueError if one of them is not a choice."""
        if unknown := [name for name in names if name not in self.names]:
            raise ValueError(f"there is no {self.noun} {untrusted.shown(unknown[0], 60)}: choose among {', '.join(self.names)}")
        return tuple(dict.fromkeys(names))

    def settings(self, name: str) -> Any:
        """Return the `Settings` class of the choice `name`.

        Raises KeyError for a name that is not in `names`. Raises Refusal if the module has no such class, or if its key `name` does not
        accept the name.
        """
        module = self.module(name)
        path, settings = self.path(name), getattr(module, "Settings", None)
        if settings is None:
            raise Refusal(f"{path}: has no class `Settings`: define it, as docs/extending.md explains")
        field = getattr(settings, "model_fields", {}).get("name")
        accepted = get_args(field.annotation) if field and get_origin(field.annotation) is Literal else ()
        if field and (field.annotation is str or (accepted and name not in accepted)):
            found = f"has another name ({', '.join(map(str, accepted))})" if accepted else "has no name of its own"
            raise Refusal(f'{path}: its class `Settings` {found}: write `name: Literal["{name}"]`')
        return settings

    def path(self, name: str) -> str:
        """Return the file of the choice `name`, from the top folder on."""
        return f"{self.package.replace('.', '/')}/{name}.py"

    def failure(self, name: str, error: Exception) -> tuple[str, str]:
        """Return where `error` was raised in the module of the choice `name`, `FILE:LINE` or the file alone, and its message on one line."""
        path = self.path(name)
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(path)]
        return f"{path}:{lines[-1]}" if lines else path, (" ".join(str(error).split()) or type(error).__name__)[:200]

    def module(self, name: str) -> Any:
        """Return the module `name`. Raises KeyError for a name that is not in `names`."""
        if name not in self.names:
            raise KeyError(name)
        return importlib.import_module(f"{self.package}.{name}")


def missing_method(owner: type, method: str) -> Refusal:
    """Return the Refusal of a class of a choice that does not define `method`, such as `build(self, spec)` of a model."""
    file = f"{owner.__module__.replace('.', '/')}.py"
    return Refusal(f"{file}: its class `{owner.__name__}` has no method `{method}`: define it, as docs/extending.md explains")


MODELS = Registry("pipeline.models", "model", needs_torch=True)
LOSSES = Registry("pipeline.losses", "loss", needs_torch=True)
SOURCES = Registry("pipeline.sources", "dataset")
INPUTS = Registry("pipeline.core.inputs", "kind of inputs")
TASKS = Registry("pipeline.core.tasks", "task")
