"""Registries of choices. Each module of a package is one choice; it is found by its name and imported only when chosen."""

import importlib
import pkgutil
import re
import traceback
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pipeline.core import untrusted
from pipeline.core.refusal import Refusal

CHOICE = re.compile(r"pipeline/(?:models|losses|sources|inference/metrics|train/augment/transforms)/\w+\.py$")
"""The file of a choice that people add by one module."""
PREPARE = str(Path(__file__).parents[1] / "prepare")
CORRECT = "correct it, as docs/extending.md explains"


@dataclass(frozen=True)
class Registry:
    """The choices in `package`, such as the models. Each module of the package is one choice or, with `part`, each folder that has this module.

    `noun` is the word for a choice in messages. Only the modules of this package can be imported by name. So the name of a choice may come
    from an untrusted file.
    """

    package: str
    noun: str
    part: str | None = None
    needs_torch: bool = False
    """True if the modules import torch, which takes seconds. A section that chooses one is validated only if all others are valid."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        if self.part is None:
            return tuple(sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(self.package).__path__)))
        folders = resources.files(self.package).iterdir()  # not the file system: a model in MLflow has its code in a zip file
        return tuple(sorted(folder.name for folder in folders if folder.joinpath(f"{self.part}.py").is_file()))

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
        path, settings = self.path(name), getattr(self.module(name), "Settings", None)
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
        return "/".join((*self.package.split("."), name, *([self.part] if self.part else []))) + ".py"

    def failure(self, name: str, error: BaseException) -> tuple[str, str]:
        """Return where `error` was raised in the module of the choice `name`, `FILE:LINE` or the file alone, and its message on one line."""
        path = self.path(name)
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(path)]
        return f"{path}:{lines[-1]}" if lines else path, message(error)

    def module(self, name: str) -> Any:
        """Return the module `name`. Raises KeyError for a name that is not in `names`, and Refusal if the module cannot be imported."""
        if name not in self.names:
            raise KeyError(name)
        try:
            return importlib.import_module(self.path(name).removesuffix(".py").replace("/", "."))
        except Refusal:
            raise
        except (Exception, SystemExit) as error:  # whatever the module of a user raises
            raise not_imported(error, self.failure(name, error)[0]) from error


def message(error: BaseException) -> str:
    """Return the message of an exception on one line, or its type if it has none."""
    return (" ".join(str(error).split()) or type(error).__name__)[:200]


def not_imported(error: BaseException, place: str) -> Refusal:
    """Return the Refusal of a module at `place`, whose import has raised `error`."""
    if isinstance(error, SyntaxError):
        file = re.search(r"pipeline/.*", error.filename or "")
        return Refusal(f"{file[0] if file else place}:{error.lineno}: {type(error).__name__}: {error.msg}: correct it")
    remedy = "correct it"
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("pipeline"):
        remedy = "correct the name, or add the package to `dependencies` in pyproject.toml and run `make lock setup`"
    return Refusal(f"{place}: {type(error).__name__}: {message(error)}: {remedy}")


def failed_choice(error: BaseException) -> Refusal | None:
    """Return the Refusal of an exception that the code of a choice, such as a model, has raised while it ran; None if it was other code."""
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        file = frame.f_code.co_filename
        if file.startswith(PREPARE):
            return None  # a source calls it, and is not to blame
        inherits = CHOICE.search(f"{type(frame.f_locals.get('self')).__module__.replace('.', '/')}.py")
        if found := CHOICE.search(file) or inherits:
            place = f"{found[0]}:{line}" if found is not inherits else found[0]
            return Refusal(f"{place}: fails: {type(error).__name__}: {message(error)}: {CORRECT}")
    return None


def missing_method(owner: type, method: str) -> Refusal:
    """Return the Refusal of a class of a choice that does not define `method`, such as `build(self, spec)` of a model."""
    file = f"{owner.__module__.replace('.', '/')}.py"
    return Refusal(f"{file}: its class `{owner.__name__}` has no method `{method}`: define it, as docs/extending.md explains")


MODELS = Registry("pipeline.models", "model", needs_torch=True)
LOSSES = Registry("pipeline.losses", "loss", needs_torch=True)
SOURCES = Registry("pipeline.sources", "dataset")
INPUTS = Registry("pipeline.inputs", "kind of inputs", "description")
READERS = Registry("pipeline.inputs", "kind of inputs", "predict", needs_torch=True)
TASKS = Registry("pipeline.tasks", "task", "targets")
USUAL_TASKS = {"class": "classification", "numbers": "regression", "labels": "multi_label"}
"""The task that is proposed for labels of each form (`Targets.form`)."""
USUAL_TASK = USUAL_TASKS["class"]
"""The task of most datasets, which is taken where nothing names one."""
