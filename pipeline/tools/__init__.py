"""The commands beside the stages. Nothing here decides a result."""

from importlib import import_module
from typing import Any

from pipeline.core.refusal import Refusal

REMOVABLE = ("export", "predict", "profile", "report", "search", "verify")
"""The folders of `pipeline/tools/` that a fork can delete: docs/removing-tools.md."""


class Removed(Refusal, ImportError):
    """Raised if something needs a folder of `pipeline/tools/` that was deleted."""


def tool(module: str) -> Any:
    """Return the module `pipeline.tools.MODULE`, which may be in a deleted folder; raises Removed then.

    Code outside of a removable folder imports its modules in this way only.
    """
    try:
        return import_module(f"pipeline.tools.{module}")
    except ModuleNotFoundError as error:
        folder = module.partition(".")[0]
        if folder not in REMOVABLE or error.name not in (f"pipeline.tools.{folder}", f"pipeline.tools.{module}"):
            raise  # something else is missing, such as a library
        raise Removed(f"pipeline/tools/{folder} is needed for this, and was removed from this checkout") from None
